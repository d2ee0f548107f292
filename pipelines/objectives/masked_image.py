import math
from dataclasses import dataclass

from anyformer.modeling.families import FAMILIES

from ..data.batch_keys import IGNORE_INDEX, row_generators, row_ids
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from ..recipes.row_words import Words
from ..recipes.schema import doc
from ..words import counted
from .data import Data
from .images import AnswersImages, ImageObjective, NormalizedSettings, ReadsImages, StoredImages
from .showing import image_text


@dataclass
class MaskedImageSettings(NormalizedSettings):
    mask_ratio: float = doc("share of an image's patches that is hidden", 0.6, above=0, below=1)


class ReadsPatches(ReadsImages):
    """Images of which the collator hides patches."""

    legend = (
        "a training image, darker to brighter [shades], blank where a patch is hidden and has to be predicted; as in "
        "the first epoch, others in each further one"
    )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches in an image."""
        size = self.facts.config.patch_size
        return self.shape[1] // size, self.shape[2] // size

    def prepare(self, sources: dict, tokenizer=None) -> Data:
        data = super().prepare(sources)
        if self.facts.config.model_type not in FAMILIES:
            raise UserError(
                f"objective.name=masked_image trains models of family vit, and model.name_or_path="
                f"{self.recipe.model.name_or_path!r} is a {self.facts.config.model_type}; convert it first, with "
                f"anyformer convert"
            )
        return data

    def rows(self, data: Data, source, split: str) -> StoredImages:
        """Rows whose labels are 0: of those that only fill up a batch they become -100."""
        return StoredImages(self._store(data, source), labels=torch.tensor(0))

    def collator(self, data: Data, packed: bool) -> "MaskedImageCollator":
        from ..images.processors import normalisation

        mean, std = normalisation(data.processor, self.shape[0])
        return MaskedImageCollator(self.settings.mask_ratio, math.prod(self.grid), mean=mean, std=std, seed=self.seed)

    def describe(self, data: Data, rows: StoredImages) -> str:
        _, height, width = self.shape
        patches = math.prod(self.grid)
        return (
            f"{counted(len(rows), 'image')} of {rows.name}, {height} x {width} pixels; "
            f"{hidden_patches(self.settings.mask_ratio, patches)} of {patches} patches hidden"
        )

    def show(self, console, data: Data, rows, number: int, row: dict) -> None:
        batch = self.collated(data, rows, number, row)
        pixels, masked = batch["pixel_values"][0], batch["bool_masked_pos"][0]
        console.rule(f"row {number}: {int(masked.sum())} of {len(masked)} patches hidden", align="left")
        size = self.facts.config.patch_size
        hidden = masked.view(self.grid).repeat_interleave(size, 0).repeat_interleave(size, 1)
        console.print(image_text(pixels.masked_fill(hidden, pixels.min())))


@register_objective
class MaskedImage(ImageObjective):
    """Hidden patches of an image from the others (SimMIM, Xie et al. 2022)."""

    name = "masked_image"
    Settings = MaskedImageSettings
    Reads, Answers = ReadsPatches, AnswersImages
    auto_class, unsmoothed = "AutoModelForMaskedImageModeling", "pixels"
    words = Words(row="image", loss="mean distance per hidden pixel value", hub_task="image-feature-extraction")


def hidden_patches(ratio: float, patches: int) -> int:
    """How many patches of an image are hidden: at least one."""
    return max(1, round(ratio * patches))


class MaskedImageCollator:
    """Rows -> one batch: pixel_values float32 (B, C, H, W), normalised, and bool_masked_pos (B, N).

    Which patches are hidden depends on the seed, the epoch and the row's number alone (data/batch_keys.py). labels
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
