"""Base of objectives and tasks of images, decoded once and fitted to the model's size by its saved processor."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ..data.rows import Rows
from ..errors import UserError, need_package
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from .answering import vectors_of_images
from .answers import Answers, FinishedModel
from .base import Objective
from .data import Data
from .reads import Reads, columns_of


@dataclass
class NormalizedSettings(ObjectiveSettings):
    """Settings of objectives and tasks whose model reads pixels, normalised by the training images."""

    image_field: str = doc("column that holds the image", "image")
    image_fit: Literal["squeeze", "crop", "pad"] = doc(
        "how an image of another aspect ratio becomes one of the model's size: squeeze: each side is scaled; "
        "crop: its shorter side fits, and what is beyond the middle is cut off; "
        "pad: its longer side fits, and black stands around it",
        "squeeze",
    )


class ImageObjective(Objective):
    """Base of objectives and tasks whose rows are images."""

    words = Words(row="image")

    def check(self) -> None:
        super().check()
        if getattr(self.settings, "image_fit", "squeeze") != "squeeze" and self.recipe.model.name_or_path is not None:
            raise UserError(
                f"{self.section}.image_fit cannot be set with model.name_or_path; the checkpoint has its own way"
            )


class ReadsImages(Reads):
    """Images, decoded and fitted to the model's size; the processor of the Data is an image processor."""

    def asked_columns(self, there: Collection[str] | None = None) -> dict[str, str]:
        return {"image_field": self.settings.image_field}

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what the model sees. Raises UserError for a model that sees none."""
        from ..images.processors import image_shape

        return image_shape(self.recipe)

    def open(self) -> dict[str, Any]:
        from ..data.opening import open_examples

        need_package(self.objective.setting, "pillow", "vision", module="PIL")
        return open_examples(self.recipe.data, columns_of(self.settings), self.objective.settings.stratified_by)

    def prepare(self, sources: dict[str, Any], tokenizer: Any = None) -> Data:
        """With mean and std of the training images in a fresh processor."""
        from ..images.processors import recipe_image_processor, settle_normalisation

        data = Data(self.objective, self, recipe_image_processor(self.recipe, self.shape), sources=sources)
        data = replace(data, labels=self._labels(sources))
        if None in (data.processor.image_mean, data.processor.image_std):
            settle_normalisation(data.processor, self._store(data, sources["train"]))
        return data

    def _labels(self, sources: dict[str, Any]) -> Any:
        """What is to be known of the labels of all splits (Data.labels). Raises UserError."""
        return None

    def _store(self, data: Data, source: Any) -> Any:
        """The store of a split's images. Raises UserError for an image that cannot be used."""
        from ..images.processors import prepare_images

        return prepare_images(source, data.processor, self.shape, self.cache, data.labels)

    def try_examples(self, examples: list, data: Data | None) -> None:
        from ..images.image_store import decode

        for place, row in examples:
            decode(row[self.settings.image_field], self.shape[0], image_setting(self.objective), place)


class AnswersImages(Answers):
    """A vector for each image."""

    head = "AutoModel"

    @property
    def channels(self) -> int:
        """Channels of the images that the finished model reads: 1 or 3."""
        return getattr(self.objective.facts.config, "num_channels", 3)

    def asked(self, row: dict, place: str) -> Any:
        """A Pillow image, in colour where the model reads colours."""
        from ..images.image_store import ON_WHITE, decode

        image = decode(row[self.settings.image_field], self.channels, image_setting(self.objective), place)
        for words in image.info["read_as"]:
            self.account.read_as("image", "", words, is_usual=words != ON_WHITE)
        return image

    def predict(self, finished: FinishedModel, asked: list) -> list[dict[str, Any]]:
        return [{"prediction": vector} for vector in vectors_of_images(finished, self.processor, asked)]


def image_setting(objective: Objective) -> str:
    """How errors name the column of the images: `task.image_field='image'`."""
    return f"{objective.section}.image_field={objective.settings.image_field!r}"


class StoredImages(Rows):
    """The images of a store (images/image_store.py) as rows. further: what each row holds beside."""

    def __init__(self, store, **further: Any):
        self.store, self.further = store, further
        self.fingerprint, self.name, self.facts = store.fingerprint, store.name, store.facts
        self.account = store.account

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> dict:
        return self.store[self.inside(index)] | self.further
