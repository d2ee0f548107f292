"""Images as the vision family reads them: resized, scaled and normalised by Pillow; torchvision is not needed."""

from transformers.image_processing_backends import PilBackend
from transformers.image_utils import ImageInput, PILImageResampling
from transformers.processing_utils import ImagesKwargs


class AnyformerImageProcessorKwargs(ImagesKwargs, total=False):
    """num_channels: 3 (colour) or 1 (grey); images of the other kind are converted. None: images stay as they are."""

    num_channels: int | None


class AnyformerImageProcessor(PilBackend):
    """Images of any size, mode or array layout -> pixel_values (B, C, height, width).

    Arrays count their colours in the first or last of three axes; of two axes they are grey. Values are those of
    bytes, 0 to 255, unless `do_rescale` is False. Fields are those of transformers' image processors (`size`,
    `resample`, `do_center_crop`, `crop_size`, `rescale_factor`, `image_mean`, `image_std`, ...), beside `num_channels`.
    """

    valid_kwargs = AnyformerImageProcessorKwargs
    model_input_names = ["pixel_values"]

    num_channels = 3
    do_resize = True
    size = {"height": 224, "width": 224}
    resample = PILImageResampling.BICUBIC
    do_rescale = True
    rescale_factor = 1 / 255
    do_normalize = True
    image_mean = [0.5]
    image_std = [0.5]

    def process_image(self, image: ImageInput, num_channels: int | None = None, **kwargs):
        """One image -> array (C, H, W) with `num_channels` channels."""
        kwargs.pop("do_convert_rgb", None)
        if num_channels is not None and hasattr(image, "convert"):  # Pillow handles palettes
            image = put_on_white(image)
            if image.mode in ("I", "F"):
                raise ValueError(
                    f"an image of mode {image.mode}; 8 or 16 bits per channel, grey or colour, can be read"
                )
            if image.mode.startswith("I;16"):  # Pillow would cut values off at 255
                image = image.convert("I").point(lambda value: value / 257 + 0.5).convert("L")
            image = image.convert({1: "L", 3: "RGB"}[num_channels])
        pixels = super().process_image(image, **kwargs)
        return pixels if num_channels in (None, pixels.shape[0]) else with_channels(pixels, num_channels)

    def normalize(self, image, mean, std, **kwargs):
        """As in transformers, but a list of one mean or deviation stands for all channels."""
        mean, std = (x[0] if isinstance(x, list | tuple) and len(x) == 1 else x for x in (mean, std))
        return super().normalize(image, mean, std, **kwargs)


def put_on_white(image):
    """A Pillow image, upright by its EXIF tag; with transparency: on white, "was_transparent" in its info."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema()[0] == 255:
        return image
    ground = image.copy()
    ground.paste((255, 255, 255, 255), (0, 0, *image.size))
    ground.alpha_composite(image)
    ground.info["was_transparent"] = True
    return ground


def with_channels(pixels, num_channels: int):
    """Array (C, H, W) of 1, 3 or 4 channels -> (num_channels, H, W); by a fourth, opacity, the others are on white."""
    if pixels.shape[0] == 4:
        white = 255 if pixels.dtype.kind in "ui" or pixels.max() > 1 else 1
        mixed = white + (pixels[:3] - float(white)) * (pixels[3:] / white)
        pixels = (mixed.round() if pixels.dtype.kind in "ui" else mixed).astype(pixels.dtype)
    if num_channels == 3:
        return pixels.repeat(3, axis=0) if pixels.shape[0] == 1 else pixels
    luma = 0.299 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2]  # ITU-R 601, as Pillow
    return (luma.round() if pixels.dtype.kind in "ui" else luma).astype(pixels.dtype)[None]


AnyformerImageProcessor.register_for_auto_class()
