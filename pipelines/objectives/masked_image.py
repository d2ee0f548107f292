"""Hidden patches of an image from the others (SimMIM, Xie et al. 2022)."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from ..data.batch_keys import IGNORE_INDEX
from ..data.examples import Examples
from ..data.image_store import ImageStore
from ..data.sample_ids import row_generators, row_ids
from ..images.processors import normalisation, prepare_images, settle_normalisation
from ..recipes.schema import ObjectiveSection


class MaskedImageObjective:
    """Some patches of each image are hidden; their pixels are predicted, and the loss is the mean distance to them.

    Args:
        processor: the image processor; mean and std are filled in as soon as the training rows are made.
        shape: (channels, height, width) of the images. patch_size: of the model's patches, in pixels.
    """

    auto_class = "AutoModelForMaskedImageModeling"
    predicts_next = False
    images = True

    def __init__(self, section: ObjectiveSection, processor, shape: tuple[int, int, int], patch_size: int, seed: int):
        self.section, self.processor, self.shape, self.seed = section, processor, shape, seed
        self.grid = (shape[1] // patch_size, shape[2] // patch_size)
        self.patches = self.grid[0] * self.grid[1]

    def rows(self, examples: Examples, cache: Path) -> "MaskedImageRows":
        """Decoded images."""
        store = prepare_images(examples, self.processor, self.shape, cache)
        settle_normalisation(self.processor, store)
        return MaskedImageRows(store)

    def collator(self, packed: bool) -> "MaskedImageCollator":
        """packed has no meaning here: each row is one image."""
        mean, std = normalisation(self.processor, self.shape[0])
        return MaskedImageCollator(self.section.mask_ratio, self.patches, mean=mean, std=std, seed=self.seed)

    def final_metrics(self, names: list[str], loss: float) -> dict[str, float]:
        """Nothing but the loss is measured."""
        return {}

    def describe(self, rows: "MaskedImageRows") -> str:
        """One line for people."""
        _, height, width = self.shape
        hidden = hidden_patches(self.section.mask_ratio, self.patches)
        return (
            f"{len(rows):,} images of {rows.name}, {height} x {width} pixels; {hidden} of {self.patches} patches hidden"
        )


def hidden_patches(ratio: float, patches: int) -> int:
    """How many patches of an image are hidden: at least one."""
    return max(1, round(ratio * patches))


class MaskedImageRows(Dataset):
    """Rows {"pixel_values" uint8 (C, H, W), "labels" ()}: the label only says, by -100, which rows fill a batch up."""

    is_packed = False

    def __init__(self, store: ImageStore):
        self.store = store
        self.fingerprint, self.name, self.facts = store.fingerprint, store.name, store.facts

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return {"pixel_values": self.store.images([index])[0], "labels": torch.tensor(0)}


class MaskedImageCollator:
    """Rows -> one batch: pixel_values float32 (B, C, H, W), normalised, and bool_masked_pos (B, N).

    Which patches are hidden depends on the seed, the epoch and the row's number alone (data/sample_ids.py). labels
    (B, N) are 0 at hidden patches and -100 elsewhere, so that Trainer counts them; the model does not see them.
    """

    def __init__(self, ratio: float, patches: int, *, mean: list[float], std: list[float], seed: int):
        self.hidden, self.patches, self.seed = hidden_patches(ratio, patches), patches, seed
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def __call__(self, rows: list[dict]) -> dict:
        masked = torch.zeros(len(rows), self.patches, dtype=torch.bool)
        for place, (row, generator) in enumerate(zip(rows, row_generators(rows, self.seed))):
            chosen = generator.permutation(self.patches)[: self.hidden]
            if int(row["labels"]) != IGNORE_INDEX:
                masked[place, torch.from_numpy(chosen)] = True
        images = torch.stack([row["pixel_values"] for row in rows]).float()
        labels = torch.where(masked, 0, IGNORE_INDEX)
        batch = {"pixel_values": (images - self.mean) / self.std, "bool_masked_pos": masked, "labels": labels}
        return batch | row_ids(rows)
