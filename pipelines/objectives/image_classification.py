from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.types import show
from ..words import counted
from .answering import of_scores, piped
from .base import SHARE
from .class_task import ClassSettings, ClassTask
from .finished_model import FinishedModel
from .images import ImageObjective, NormalizedSettings, StoredImages
from .showing import as_png, image_text, shares_text

MOST_PIXELS = 96  # on a side of an image in a report


@dataclass
class ImageClassificationSettings(ClassSettings, NormalizedSettings):
    crop_padding: int = doc(
        "training images are shifted at random by up to so many pixels", 0, at_least=0, at_most=2**16
    )
    horizontal_flip: float = doc("probability that a training image is mirrored", 0.0, **SHARE)
    mixup_alpha: float = doc(
        "each training image is blended with another, by shares of Beta(alpha, alpha); 0: off",
        0.0,
        at_least=0,
        at_most=1000,
    )
    cutmix_alpha: float = doc(
        "a box of each training image is taken from another, by Beta(alpha, alpha); 0: off; with mixup a coin decides",
        0.0,
        at_least=0,
        at_most=1000,
    )


@register_objective
class ImageClassification(ClassTask, ImageObjective):
    """One class for an image.

    Mean and std of the training images are written into the processor as soon as the training rows are made.
    """

    name = "image_classification"
    section = "task"
    use = "anyformer predict {folder} FILE"
    auto_class = "AutoModelForImageClassification"
    families = ("vit",)
    hub_task = "image-classification"
    row_noun = "example"
    loss_unit = "nats per example"
    Settings = ImageClassificationSettings
    stratified_by = ClassTask.label_column
    legend_words = (
        "a training image as the model sees it in the first epoch (shifted, mirrored and mixed as the recipe says), "
        "darker to brighter [shades], two characters for a pixel or a block of them, and what has to be answered"
    )
    _train = None  # store of the training images, from which the collator takes those that it mixes in

    def columns(self) -> dict[str, str]:
        return {"image_field": self.settings.image_field, "label_field": self.settings.label_field}

    def before_training(self) -> None:
        super().before_training()
        if self.settings.class_weights is not None and getattr(self.config, "distillation_head", False):
            raise UserError(
                f"task.class_weights={show(self.settings.class_weights)} does not go with "
                f"model.distillation_head=true, whose two classifiers have a loss each; remove one of the two"
            )

    def try_examples(self, examples: list, prepared: bool) -> None:
        super().try_examples(examples, prepared)
        if prepared:
            for place, row in examples:
                self.label_of(row[self.label_column], place)

    def rows(self, source, split: str, cache: Path, progress: bool = False) -> "ImageRows":
        """Decoded images with their class numbers; training rows are marked for augmentation."""
        from ..images.processors import prepare_images, settle_normalisation

        store = prepare_images(
            source,
            self.processor,
            self.shape,
            cache,
            class_of=self.label_of,
            classes=self.label_names,
            label_facts=self.label_facts,
        )
        if split == "train":
            self._train = store
            settle_normalisation(self.processor, store)
        return ImageRows(store, augment=split == "train")

    def collator(self, packed: bool):
        """One collator for the rows of all splits: it augments marked rows alone."""
        from ..images.augmentation import Augmentation, ImageCollator
        from ..images.processors import normalisation

        section, (mean, std) = self.settings, normalisation(self.processor, self.shape[0])
        return ImageCollator(
            Augmentation(section.crop_padding, section.horizontal_flip, section.mixup_alpha, section.cutmix_alpha),
            store=self._train,
            num_classes=len(self.label_names),
            mean=mean,
            std=std,
            seed=self.seed,
        )

    def describe(self, rows: "ImageRows") -> str:
        facts, (channels, height, width) = rows.facts, self.shape
        return (
            f"{counted(facts['examples'], 'image')} of {rows.name}, {height} x {width} pixels, "
            f"{'grey' if channels == 1 else 'colour'}; {self.label_words(facts)}"
        )

    answers_by = auto_class

    def predict(self, finished: FinishedModel, asked: list) -> list[dict[str, Any]]:
        results = piped(self, finished, "ImageClassification", asked, top_k=len(finished.model.config.id2label))
        return list(map(of_scores, results))

    def as_read(self, place: int, row: dict) -> dict[str, str]:
        return {"image": as_png(row["pixel_values"], MOST_PIXELS)}

    def show(self, console, rows, number: int, row: dict) -> None:
        batch, names = self.collated(rows, number, row), self.label_names
        console.rule(f"row {number}: class {names[int(row['labels'])]}", align="left")
        console.print(image_text(batch["pixel_values"][0]))
        console.print(f"answer: {shares_text(batch['labels'][0], names)}", markup=False)


class ImageRows(StoredImages):
    """The rows of a store; with `augment`, each row has the key of that name, by which the collator augments it."""

    def __init__(self, store, augment: bool):
        super().__init__(store)
        self.augment = augment

    def __getitem__(self, index: int) -> dict:
        return self.store[self.inside(index)] | ({"augment": True} if self.augment else {})
