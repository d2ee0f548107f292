"""Images decoded once: bytes on disk, memory-mapped ever after."""

import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..data.account import Account
from ..data.cells import kind_of
from ..data.examples import Examples
from ..data.mapped_store import META, MappedStore
from ..data.rows import Rows
from ..errors import UserError

PIXELS, LABELS = "pixels.bin", "labels.npy"
# Pillow's modes of 8 bits or fewer per channel.
COLOR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
GREY = ("1", "L", "LA")
ORIENTATION = 0x0112  # a tag of EXIF
TURNED, ON_WHITE = "turned, as their EXIF says", "with transparency put on white"


class ImageStore(MappedStore, Rows, Dataset):
    """The images of one split as uint8, in the order of their source: rows {"pixel_values" (C, H, W), "labels" ()}.

    facts: examples, mean and std per channel of the values divided by 255. labels: (N,) class numbers, or None where
    none were read. pixels: memory map (N, C, H, W).
    """

    kind = "images"

    def _open(self, meta: dict[str, Any]) -> None:
        self.facts = meta["facts"]
        self.labels = np.load(self.folder / LABELS) if meta["labels"] else None
        self.pixels = np.memmap(self.folder / PIXELS, dtype=np.uint8, mode="r", shape=tuple(meta["shape"]))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = {"pixel_values": self.images([index])[0]}
        return row if self.labels is None else row | {"labels": torch.tensor(int(self.labels[index]))}

    def images(self, indices) -> torch.Tensor:
        """Some images, uint8 (B, C, H, W)."""
        return torch.from_numpy(self.pixels[np.asarray(indices)])  # a list of indices copies


def store_images(
    cache: Path,
    key: str,
    examples: Examples,
    batches: Callable[[], Iterable[tuple[np.ndarray, list[int] | None]]],
    account: Account,
    label_facts: Callable[[np.ndarray], dict] | None = None,
) -> ImageStore:
    """Store the images that `batches` yields, as (uint8 (B, C, H, W), classes or None), under cache/images/key.

    account: of the images, once `batches` has yielded them all. label_facts: (all classes) -> more facts.
    Raises what `batches` raises; no files are left behind then.
    """

    def build(folder: Path) -> None:
        count, labels, shape = 0, [], ()
        total = squares = 0.0
        with (folder / PIXELS).open("wb") as file:
            for pixels, classes in batches():
                file.write(np.ascontiguousarray(pixels).tobytes())
                count, shape = count + len(pixels), pixels.shape[1:]
                labels += classes or []
                values = pixels.astype(np.float64) / 255
                total += values.mean(axis=(2, 3)).sum(axis=0)
                squares += (values**2).mean(axis=(2, 3)).sum(axis=0)
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0))
        facts = {"examples": count, "mean": mean.round(4).tolist(), "std": std.round(4).tolist()}
        if labels:
            np.save(folder / LABELS, np.array(labels, dtype=np.int64))
            facts |= label_facts(np.array(labels)) if label_facts else {}
        meta = {"fingerprint": key, "name": examples.name, "shape": [count, *shape], "labels": bool(labels)}
        (folder / META).write_text(json.dumps(meta | {"facts": facts, "account": account.to_json()}))

    return ImageStore.cached(cache, key, build, examples.files)


def decode(value: Any, channels: int, field: str, place: str):
    """A Pillow image, upright, in mode L (channels 1) or RGB (3), on white where it was transparent.

    Its info says in "read_as", in words for the account, what else it was. value: encoded bytes, {"bytes", "path"} as
    datasets' Image feature stores it, a path, or a Pillow image.

    Raises UserError, beginning with `field`, for what is no image, has more than 8 bits per channel, or has colours
    where the model sees grey.
    """
    import PIL.Image
    import PIL.ImageOps
    from anyformer.modeling.image_processing import put_on_white

    try:
        opened = _opened(value, field, place)
        is_turned = opened.getexif().get(ORIENTATION, 1) != 1
        image = PIL.ImageOps.exif_transpose(opened)
        image.load()
    except PIL.UnidentifiedImageError:
        raise UserError(f"{field}: {place} holds no image that Pillow can read") from None
    except (OSError, PIL.Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{field}: {place} holds an image that cannot be read ({reason})") from None
    if image.mode not in (*COLOR, *GREY):
        raise UserError(
            f"{field}: {place} is an image of mode {image.mode}; 8 bits per channel, grey or colour, can be read"
        )
    if channels == 1 and image.mode in COLOR:
        raise UserError(f"{field}: {place} is a colour image, but model.num_channels=1; set it to 3")
    on_white, mode = put_on_white(image), {1: "L", 3: "RGB"}[channels]
    read_as = {TURNED: is_turned, ON_WHITE: "was_transparent" in on_white.info}
    read_as[f"of mode {image.mode}, read as {mode}"] = image.mode != mode
    found = on_white.convert(mode)
    found.info["read_as"] = [words for words, is_so in read_as.items() if is_so]
    return found


def _opened(value: Any, field: str, place: str):
    import PIL.Image

    if isinstance(value, PIL.Image.Image):
        return value
    if isinstance(value, dict):  # datasets' Image feature
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return PIL.Image.open(io.BytesIO(value))
    if isinstance(value, str):
        return PIL.Image.open(os.path.expanduser(value))
    raise UserError(f"{field}: {place} holds {kind_of(value)}, not an image")
