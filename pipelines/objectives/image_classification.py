"""One class for an image."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from ..data.examples import Examples
from ..data.image_store import ImageStore
from ..images.augmentation import Augmentation, ImageCollator
from ..images.processors import normalisation, prepare_images, settle_normalisation
from ..recipes.schema import TaskSection
from .classes import ClassTask


def columns_of(section: TaskSection) -> dict[str, str]:
    """Recipe field -> column the task reads."""
    return {"image_field": section.image_field, "label_field": section.label_field}


class ImageClassification(ClassTask):
    """Images and their classes; the class's name is the model's answer.

    Args:
        processor: what makes pixel_values of an image; where the recipe names neither mean nor std, those of the
            training images are written into it as soon as its rows are made.
        shape: (channels, height, width) of the model's images.
        train, metrics: as ClassTask's.
        seed: of all that is random about a row.

    Raises:
        UserError: as ClassTask.
    """

    auto_class = "AutoModelForImageClassification"
    images = True

    def __init__(self, section: TaskSection, processor, shape, train: Examples, cache: Path, metrics, seed: int = 0):
        super().__init__(section, train, cache, metrics)
        self.processor, self.shape, self.seed = processor, shape, seed
        self.augmentation = Augmentation(
            section.crop_padding, section.horizontal_flip, section.mixup_alpha, section.cutmix_alpha
        )
        self._train: ImageStore | None = None

    def rows(self, examples: Examples, cache: Path) -> "ImageRows":
        """Decoded images with their class numbers; those of the training split are for augmentation."""
        store = prepare_images(
            examples,
            self.processor,
            self.shape,
            cache,
            class_of=self.class_of,
            classes=self.label_names,
            label_facts=lambda labels: {"classes": self.counts(labels)},
        )
        if examples.split == "train":
            self._train = store
            settle_normalisation(self.processor, store)
        return ImageRows(store, augment=examples.split == "train")

    def collator(self, packed: bool) -> ImageCollator:
        """For rows of all splits."""
        mean, std = normalisation(self.processor, self.shape[0])
        return ImageCollator(
            self.augmentation,
            store=self._train,
            num_classes=len(self.label_names),
            mean=mean,
            std=std,
            seed=self.seed,
        )

    def describe(self, rows: "ImageRows") -> str:
        """One line for people."""
        facts, (channels, height, width) = rows.facts, self.shape
        classes = ", ".join(f"{name} {count:,}" for name, count in facts["classes"].items())
        return (
            f"{facts['examples']:,} images of {rows.name}, {height} x {width} pixels, "
            f"{'grey' if channels == 1 else 'colour'}; {classes}"
        )


class ImageRows(Dataset):
    """The rows of a store; `augment` in a row tells the collator that it is one of the training set's."""

    is_packed = False

    def __init__(self, store: ImageStore, augment: bool):
        self.store, self.augment = store, augment
        self.fingerprint, self.name, self.facts = store.fingerprint, store.name, store.facts

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = self.store[index]
        return row | {"augment": True} if self.augment else row
