from dataclasses import dataclass, replace
from typing import Any

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.row_words import PREDICTS
from ..recipes.schema import doc
from ..recipes.types import show
from ..words import counted
from .answering import OF_SCORES, of_scores, piped
from .answers import FinishedModel
from .base import SHARE
from .class_labels import (
    ClassLabels,
    ClassScores,
    ClassSettings,
    LearnsClasses,
    find_classes,
    try_classes,
    with_class_notes,
)
from .data import Data
from .images import AnswersImages, ImageObjective, NormalizedSettings, ReadsImages, StoredImages
from .label_values import the_value
from .showing import image_text, shares_text


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


class ReadsClassedImages(ReadsImages):
    """Images, each with a class."""

    legend = (
        "a training image as the model sees it in the first epoch (shifted, mirrored and mixed as the recipe says), "
        "darker to brighter [shades], two characters for a pixel or a block of them, and what has to be answered"
    )

    classes_in = staticmethod(the_value)

    def open(self) -> dict[str, Any]:
        weights = self.settings.class_weights if self.facts.measured is None else None
        if weights is not None and getattr(self.facts.config, "distillation_head", False):
            raise UserError(
                f"task.class_weights={show(weights)} does not go with "
                f"model.distillation_head=true, whose two classifiers have a loss each; remove one of the two"
            )
        return super().open()

    def _labels(self, sources: dict) -> ClassLabels:
        return find_classes(self, sources)

    def try_examples(self, examples: list, data: Data | None) -> None:
        if data is None:
            try_classes(self, examples)
        super().try_examples(examples, data)
        if data is not None:
            for place, row in examples:
                data.labels.of(row, place)

    def rows(self, data: Data, source, split: str) -> StoredImages:
        """Decoded images with their class numbers; training rows are marked for augmentation."""
        return StoredImages(self._store(data, source), **{"augment": True} if split == "train" else {})

    completed = with_class_notes

    def collator(self, data: Data, packed: bool):
        """One collator for the rows of all splits: it augments marked rows alone, with others of the training rows."""
        from ..images.augmentation import ImageCollator
        from ..images.processors import normalisation

        mean, std = normalisation(data.processor, self.shape[0])
        return ImageCollator(
            self.settings,
            store=data.rows["train"].store if "train" in data.rows else None,
            num_classes=len(data.labels.names),
            mean=mean,
            std=std,
            seed=self.seed,
        )

    def describe(self, data: Data, rows: StoredImages) -> str:
        facts, (channels, height, width) = rows.facts, self.shape
        return (
            f"{counted(facts['examples'], 'image')} of {rows.name}, {height} x {width} pixels, "
            f"{'grey' if channels == 1 else 'colour'}; {data.labels.words(facts)}"
        )

    def show(self, console, data: Data, rows, number: int, row: dict) -> None:
        batch, names = self.collated(data, rows, number, row), data.labels.names
        console.rule(f"row {number}: class {names[int(row['labels'])]}", align="left")
        console.print(image_text(batch["pixel_values"][0]))
        console.print(f"answer: {shares_text(batch['labels'][0], names)}", markup=False)


class AnswersClass(AnswersImages):
    """The class of an image."""

    head = "AutoModelForImageClassification"

    def predict(self, finished: FinishedModel, asked: list) -> list[dict[str, Any]]:
        results = piped(self, finished, "ImageClassification", asked, top_k=len(finished.model.config.id2label))
        return list(map(of_scores, results))


@register_objective
class ImageClassification(ImageObjective):
    """One class for an image.

    Mean and std of the training images are written into a fresh processor before the rows are made.
    """

    name = "image_classification"
    section, row_labels = "task", {"labels": ()}
    Settings = ImageClassificationSettings
    Reads, Learns, Scores, Answers = ReadsClassedImages, LearnsClasses, ClassScores, AnswersClass
    auto_class = AnswersClass.head
    families = ("vit",)
    compares, gives = "classes", OF_SCORES
    default_metrics = ("accuracy",)
    words = replace(PREDICTS, hub_task="image-classification")
