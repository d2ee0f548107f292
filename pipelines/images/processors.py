"""The image processor of a run, made from the recipe or loaded with the checkpoint; and images prepared by it, once.

It is saved with the model: users' images are prepared as the training images were.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers

# transformers < 5.23: from `transformers` itself the class would need torchvision.
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from ..adapters import load_config, tokenizer_place
from ..data.account import READ_AS, Account
from ..data.documents import in_batches
from ..data.examples import Examples
from ..errors import UserError, loading
from ..recipes.checks import config_namespace
from ..recipes.schema import Recipe
from ..storage.cache import sha
from ..storage.contents import hashed_files
from ..transformers_logging import errors_only
from .image_store import ON_WHITE, ImageStore, decode, store_images

SQUEEZED = 1.1  # factor from which a change of the aspect ratio is reported
BATCH = 256  # images decoded and resized at once


def load_image_processor(name: str, trust_remote_code: bool):
    """The image processor of a checkpoint; raises UserError where there is none."""
    with loading(f"model.name_or_path={name!r}: its image processor"), errors_only():  # no warning about torchvision
        return AutoImageProcessor.from_pretrained(tokenizer_place(name), trust_remote_code=trust_remote_code)


def image_gpt_processor(side: int):
    """transformers' image processor of ImageGPT for square images, its clusters still missing.

    It is saved without code. It is the Pillow version where transformers has one, which loads without torchvision, too.
    """
    kind = getattr(transformers, "ImageGPTImageProcessorPil", None) or transformers.ImageGPTImageProcessor
    return kind(size={"height": side, "width": side}, do_convert_rgb=True)


def image_shape(recipe: Recipe) -> tuple[int, int, int]:
    """(channels, height, width) of the images that the recipe's model sees. Raises UserError."""
    config = config_namespace(recipe)
    if config is None:
        with loading(f"model.name_or_path={recipe.model.name_or_path!r}"):
            config = load_config(recipe.model.name_or_path, trust_remote_code=recipe.trust_remote_code)
        if not hasattr(config, "num_channels"):
            raise UserError(f"model.name_or_path={recipe.model.name_or_path!r} does not see images")
        if not hasattr(config, "image_size"):  # convolutions take any size: that of the processor counts
            processor = load_image_processor(recipe.model.name_or_path, recipe.trust_remote_code)
            return config.num_channels, *made_size(processor)
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return config.num_channels, height, width


def made_size(processor) -> tuple[int, int]:
    """(height, width) of the images that a processor makes."""
    cropped = getattr(processor, "do_center_crop", None) and processor.crop_size
    size = dict(cropped or processor.size)
    return (size.get("height") or size["shortest_edge"], size.get("width") or size["shortest_edge"])


def recipe_image_processor(recipe: Recipe, shape: tuple[int, int, int]):
    """The processor that the recipe's model is saved with. Mean and std of a fresh one are None for now."""
    if recipe.model.name_or_path is not None:
        return load_image_processor(recipe.model.name_or_path, recipe.trust_remote_code)
    from anyformer.modeling.image_processing import AnyformerImageProcessor

    channels, height, width = shape
    whole = {"height": height, "width": width}
    sizes = {
        "squeeze": whole,
        "crop": {"shortest_edge": max(height, width)},
        "pad": {"max_height": height, "max_width": width},  # transformers' crop pads smaller images with zeros
    }
    size = sizes[recipe.learned.image_fit]
    options = {} if size is whole else {"do_center_crop": True, "crop_size": whole}
    processor = AnyformerImageProcessor(size=size, num_channels=channels, **options)
    processor.image_mean = processor.image_std = None
    return processor


def settle_normalisation(processor, store: ImageStore) -> None:
    """Write mean and std of the training images into the processor where it has none yet."""
    if processor.image_mean is None:
        processor.image_mean = store.facts["mean"]
    if processor.image_std is None:
        processor.image_std = [value or 1.0 for value in store.facts["std"]]


def normalisation(processor, channels: int) -> tuple[list[float], list[float]]:
    """(subtrahends, divisors) by channel for values from 0 to 255, with the effect of the processor's normalisation."""
    scale = processor.rescale_factor if processor.do_rescale else 1.0
    mean, std = [0.0] * channels, [1.0] * channels
    if processor.do_normalize:
        mean, std = list(processor.image_mean), list(processor.image_std)
    return [value / scale for value in mean], [value / scale for value in std]


def prepare_images(
    examples: Examples, processor, shape: tuple[int, int, int], cache: Path, labels: Any = None
) -> ImageStore:
    """The images of a split, decoded, resized and cropped by the processor, but neither rescaled nor normalised.

    labels: the ClassLabels of their classes; None: no labels are read. Raises UserError for an image that cannot be
    used.
    """
    columns = examples.source.columns
    field = f"{'task' if labels else 'objective'}.image_field={columns['image_field']!r}"
    geometry = {name: value for name, value in processor.to_dict().items() if name not in MEANING}
    rest = [list(shape), labels and labels.identity(), str(sorted(geometry.items())), "account"]
    with hashed_files() as examples.files:
        identity = examples.identity()
    key = sha([sha(identity), *rest])

    account = Account()

    def batches() -> Iterator[tuple[np.ndarray, list[int] | None]]:
        for batch in in_batches(examples, BATCH):
            images = [decode(row[columns["image_field"]], shape[0], field, place) for place, row in batch]
            numbers = labels and [labels.number(row[columns["label_field"]], place, account) for place, row in batch]
            for image in images:
                count_image(account, image, processor, shape, field)
            yield resized(processor, images, shape), numbers
        account.update(examples.account())

    store = store_images(cache, key, examples, batches, account, labels and labels.facts)
    is_on_white = any(key.why.startswith(ON_WHITE) for key, _ in store.account.entries(READ_AS, "image"))
    if is_on_white and getattr(processor, "do_convert_rgb", True) in (None, False) and shape[0] == 3:
        processor.do_convert_rgb = True  # in transformers' own processors: on white
    return store


def count_image(account: Account, image, processor, shape: tuple[int, int, int], field: str) -> None:
    """Count what an image is read as. field: how errors name its column."""
    _, height, width = shape
    for words in image.info["read_as"]:
        if words == ON_WHITE:
            way_out = "transformers' pipelines drop transparency before the processor: give them images without it"
            account.read_as("image", "", f"{words}, as predict and the saved processor do", hint=way_out)
        else:
            account.read_as("image", "", words, is_usual=True)
    if is_squeezed(processor, image.size, shape):
        is_new = hasattr(processor, "num_channels")  # the processor of fresh models
        way_out = (
            f"{field.split('.')[0]}.image_fit=crop cuts them instead, pad puts black around them" if is_new else ""
        )
        account.read_as("image", "", f"squeezed to {height} x {width}, of another aspect ratio", hint=way_out)
    elif image.size != (width, height):
        account.read_as("image", "", f"of another size, made {height} x {width}", is_usual=True)


def is_squeezed(processor, size: tuple[int, int], shape: tuple[int, int, int]) -> bool:
    """Whether the processor changes the ratio of an image's sides by more than a tenth. size: (width, height)."""
    if not processor.do_resize or {"height", "width"} - {name for name, value in dict(processor.size).items() if value}:
        return False
    ratio = size[0] * shape[1] / (size[1] * shape[2])
    return not 1 / SQUEEZED < ratio < SQUEEZED


def processor_fingerprint(processor) -> str:
    """Equal for processors that make the same pixel values of every image."""
    return sha(str(sorted(processor.to_dict().items())))


# Settings of what a processor does after resizing and cropping; they change no stored image.
MEANING = {
    *("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor"),
    *("do_color_quantize", "clusters", "auto_map", "transformers_version", "do_convert_rgb"),
}


def resized(processor, images: list, shape: tuple[int, int, int]) -> np.ndarray:
    """Pillow images -> uint8 (B, C, H, W). Raises UserError where the processor gives another shape."""
    options = {"do_rescale": False, "do_normalize": False}
    if hasattr(processor, "do_color_quantize"):
        options["do_color_quantize"] = False
    pixels = np.stack([np.asarray(image) for image in processor(images=images, **options)["pixel_values"]])
    if pixels.shape[1:] != shape:
        actual, expected = (" x ".join(map(str, sizes)) for sizes in (pixels.shape[1:], shape))
        raise UserError(f"the model's image processor gives images of {actual}, but its config says {expected}")
    return pixels.round().clip(0, 255).astype(np.uint8) if pixels.dtype != np.uint8 else pixels
