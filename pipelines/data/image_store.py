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

from ..errors import UserError
from ..storage.cache import cached_folder

PIXELS, LABELS, META = "pixels.bin", "labels.npy", "meta.json"
# Pillow's modes of 8 bits or fewer per channel.
COLOR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
GREY = ("1", "L", "LA")


class ImageStore(Dataset):
    """The images of one split as uint8, in the order of their source: rows {"pixel_values" (C, H, W), "labels" ()}.

    fingerprint: identity of the images and of the way they were decoded. facts: examples, mean and std per channel of
    the values divided by 255. labels: (N,) class numbers, or None where none were read.
    """

    is_packed = False

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        meta = json.loads((self.folder / META).read_text())
        self.fingerprint, self.name, self.facts = meta["fingerprint"], meta["name"], meta["facts"]
        self._shape = tuple(meta["shape"])
        self.labels = np.load(self.folder / LABELS) if meta["labels"] else None
        self._map()

    def _map(self) -> None:
        self.pixels = np.memmap(self.folder / PIXELS, dtype=np.uint8, mode="r", shape=self._shape)

    def __getstate__(self) -> dict:
        """Without the map: a worker process opens the file itself instead of receiving its content."""
        return {name: value for name, value in vars(self).items() if name != "pixels"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._map()

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
    name: str,
    batches: Callable[[], Iterable[tuple[np.ndarray, list[int] | None]]],
    label_facts: Callable[[np.ndarray], dict] | None = None,
) -> ImageStore:
    """The images that `batches` gives as (uint8 (B, C, H, W), classes or None), stored under cache/images/key.

    label_facts: more facts, from all classes. Raises what `batches` raises; nothing is left behind then.
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
        meta = {"fingerprint": key, "name": name, "shape": [count, *shape], "labels": bool(labels), "facts": facts}
        (folder / META).write_text(json.dumps(meta))

    def is_complete(folder: Path) -> bool:
        try:
            shape = json.loads((folder / META).read_text())["shape"]
            return (folder / PIXELS).stat().st_size == int(np.prod(shape))
        except (OSError, ValueError, KeyError):
            return False

    return ImageStore(cached_folder(cache, "images", key, build, is_complete))


def decode(value: Any, channels: int, field: str, place: str):
    """The image as Pillow's, upright, in mode L (channels 1) or RGB (3).

    value: encoded bytes, {"bytes", "path"} as datasets' Image feature stores it, a path, or an image of Pillow's.

    Raises UserError, beginning with `field`, for what is no image, has more than 8 bits per channel, or has colours
    where the model sees grey.
    """
    import PIL.Image
    import PIL.ImageOps

    try:
        image = PIL.ImageOps.exif_transpose(_opened(value, field, place))
        image.load()
    except PIL.UnidentifiedImageError:
        raise UserError(f"{field}: {place} holds no image that Pillow can read") from None
    except PIL.Image.DecompressionBombError as error:
        raise UserError(f"{field}: {place} is too large an image ({error})") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{field}: {place} holds an image that cannot be read ({reason})") from None
    if image.mode not in (*COLOR, *GREY):
        raise UserError(
            f"{field}: {place} is an image of mode {image.mode}; 8 bits per channel, grey or colour, can be read"
        )
    if channels == 1 and image.mode in COLOR:
        raise UserError(f"{field}: {place} is a colour image, but model.num_channels=1; set it to 3")
    return image.convert({1: "L", 3: "RGB"}[channels])


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
    raise UserError(f"{field}: {place} holds {'null' if value is None else type(value).__name__}, not an image")
