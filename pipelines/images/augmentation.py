"""Random changes of training images: shifts, mirror images, mixup (Zhang et al. 2018) and cutmix
(Yun et al. 2019), on whole batches.

What happens to a row depends on the seed, the epoch and the row's number alone (data/batch_keys.py), so it is
the same after a restart, in another process, and in a batch of other rows. Therefore the image with which another one
is mixed comes from the whole training set, not from the batch.
"""

import numpy as np
import torch
from torch.nn import functional

from ..data.batch_keys import IGNORE_INDEX, row_generators, row_ids

# B rows, C channels, H height, W width, K classes


def shift_and_flip(images: torch.Tensor, shifts: np.ndarray, flips: np.ndarray, padding: int) -> torch.Tensor:
    """Cut (H, W) out of each image padded with `padding` black pixels, at `shifts`; mirrored where `flips`."""
    height, width = images.shape[-2:]
    places = zip(functional.pad(images, (padding,) * 4), shifts.tolist())
    cut = torch.stack([image[:, top : top + height, left : left + width] for image, (top, left) in places])
    mirrored = torch.from_numpy(flips)
    cut[mirrored] = cut[mirrored].flip(-1)
    return cut


def cutmix_boxes(shares: np.ndarray, centres: np.ndarray, height: int, width: int) -> torch.Tensor:
    """Masks (B, H, W) of the box that the second image covers: 1 - share of the area, cut off at the border."""
    half = np.sqrt(1 - shares) / 2
    inside = []
    for axis, size in enumerate((height, width)):
        middle = centres[:, axis] * size
        low, high = (np.round(middle + sign * half * size)[:, None] for sign in (-1, 1))
        places = np.arange(size)[None]
        inside.append((places >= low) & (places < high))
    return torch.from_numpy(inside[0][:, :, None] & inside[1][:, None, :])


class ImageCollator:
    """Rows of images -> one batch: pixel_values float32 (B, C, H, W), normalised, and labels.

    Rows with the key `augment`, those of the training set, are augmented; others are not. labels are (B,) class
    numbers, or (B, K) shares of the classes where rows are mixed.

    Args:
        settings: the section `task` of an ImageClassification.
        store: the training images, where partners for mixing come from.
        num_classes: K.
        mean, std: subtrahend and divisor of each channel, for values from 0 to 255.
    """

    def __init__(self, settings, *, store, num_classes: int, mean: list[float], std: list[float], seed: int):
        self.settings, self.store, self.num_classes, self.seed = settings, store, num_classes, seed
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def __call__(self, rows: list[dict]) -> dict:
        images = torch.stack([row["pixel_values"] for row in rows])
        batch = row_ids(rows)
        if "labels" in rows[0]:
            batch["labels"] = torch.stack([row["labels"] for row in rows])
        if not rows[0].get("augment"):
            return {"pixel_values": self.normalised(images), **batch}
        generators = row_generators(rows, self.seed)
        pixels = self.normalised(self.views(images, generators))
        mixes = self.settings.mixup_alpha > 0 or self.settings.cutmix_alpha > 0
        if mixes and bool((batch["labels"] != IGNORE_INDEX).all()):  # not a batch without labels
            pixels, batch["labels"] = self._mixed(pixels, batch["labels"], generators)
        return {"pixel_values": pixels, **batch}

    def views(self, images: torch.Tensor, generators: list[np.random.Generator]) -> torch.Tensor:
        """(B, C, H, W) -> the same shape and type: each image shifted and perhaps mirrored."""
        padding, flip = self.settings.crop_padding, self.settings.horizontal_flip
        if not padding and not flip:
            return images
        shifts = np.array([generator.integers(2 * padding + 1, size=2) for generator in generators])
        flips = np.array([generator.random() for generator in generators]) < flip
        return shift_and_flip(images, shifts, flips, padding)

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 -> float32 with mean 0 and variance 1, as the saved image processor does it."""
        return (images.float() - self.mean) / self.std

    def _mixed(self, pixels: torch.Tensor, labels: torch.Tensor, generators) -> tuple[torch.Tensor, torch.Tensor]:
        settings, (height, width) = self.settings, pixels.shape[-2:]
        partners = np.array([generator.integers(len(self.store)) for generator in generators])
        others = self.normalised(self.views(self.store.images(partners), generators))
        shares, centres, cuts = np.empty(len(generators)), np.empty((len(generators), 2)), []
        for place, generator in enumerate(generators):
            coin = generator.random()
            cut = settings.cutmix_alpha > 0 and (coin < 0.5 or not settings.mixup_alpha)
            alpha = settings.cutmix_alpha if cut else settings.mixup_alpha
            shares[place], centres[place] = generator.beta(alpha, alpha), generator.random(2)
            cuts.append(cut)
        cuts = torch.tensor(cuts)
        boxes = cutmix_boxes(shares, centres, height, width)
        shares = torch.from_numpy(shares).float()
        shares = torch.where(cuts, 1 - boxes.float().mean(dim=(1, 2)), shares)  # the area within the border
        weights = torch.where(cuts[:, None, None], 1 - boxes.float(), shares[:, None, None])[:, None]
        pixels = torch.lerp(others, pixels, weights)
        pairs = torch.stack([labels, torch.from_numpy(self.store.labels[partners])])
        first, second = functional.one_hot(pairs, self.num_classes).float()
        return pixels, torch.lerp(second, first, shares[:, None])
