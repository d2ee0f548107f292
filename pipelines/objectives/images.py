"""Base of objectives and tasks of images, decoded once and fitted to the model's size by its saved processor."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..data.rows import Rows
from ..errors import UserError, need_package
from ..recipes.schema import ObjectiveSettings, TokenizerSection, doc
from .answering import vectors_of_images
from .base import Objective, check_examples
from .finished_model import FinishedModel


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
    """Rows are images. `processor` is an image processor, `shape` (channels, height, width) of what the model sees."""

    row_noun = "image"

    def columns(self) -> dict[str, str]:
        """Recipe field -> column that is read."""
        return {"image_field": self.settings.image_field}

    def check(self) -> None:
        check_examples(self)
        if getattr(self.settings, "image_fit", "squeeze") != "squeeze" and self.recipe.model.name_or_path is not None:
            raise UserError(
                f"{self.section}.image_fit cannot be set with model.name_or_path; the checkpoint has its own way"
            )
        super().check()

    def check_tokenizer(self) -> None:
        """Raise UserError for tokenizer settings, but for name_or_path, which is filled in with the checkpoint's."""
        section = self.recipe.tokenizer
        for field, default in vars(TokenizerSection()).items():
            value = getattr(section, field)
            if value != default and not (field == "name_or_path" and value == self.recipe.model.name_or_path):
                raise UserError(f"tokenizer.{field} has no effect with {self.setting}; images have no text")

    def open(self) -> dict[str, Any]:
        from ..data.image_files import open_images

        need_package(self.setting, "pillow", "vision", module="PIL")
        return open_images(self.recipe.data, self.columns(), self.stratified_by)

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        from ..images.processors import image_shape, recipe_image_processor

        self.shape = image_shape(self.recipe)
        self.processor = recipe_image_processor(self.recipe, self.shape)

    # ---- rows without labels: a vector for each, unless the model has classes

    answers_by = "AutoModel"

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        return {"image_field": self.settings.image_field}

    def asked(self, row: dict, place: str) -> Any:
        """A Pillow image, in colour where the model reads colours."""
        from ..data.image_store import decode

        image = decode(row[self.settings.image_field], self.channels, self._image_setting, place)
        self.on_white += "was_transparent" in image.info
        return image

    @property
    def channels(self) -> int:
        """Channels of the images that the finished model reads: 1 or 3."""
        return getattr(self.config, "num_channels", 3)

    def predict(self, finished: FinishedModel, asked: list) -> list[dict[str, Any]]:
        return [{"prediction": vector} for vector in vectors_of_images(finished, self.processor, asked)]

    def try_examples(self, examples: list, prepared: bool) -> None:
        from ..data.image_store import decode

        if prepared:
            for place, row in examples:
                decode(row[self.settings.image_field], self.shape[0], self._image_setting, place)
        super().try_examples(examples, prepared)

    @property
    def _image_setting(self) -> str:
        return f"{self.section}.image_field={self.settings.image_field!r}"

    def processor_fingerprint(self) -> str:
        from ..images.processors import processor_fingerprint

        return processor_fingerprint(self.processor)


class StoredImages(Rows):
    """The images of a store (data/image_store.py) as rows; a subclass says what a row is."""

    def __init__(self, store):
        self.store = store
        self.fingerprint, self.name, self.facts = store.fingerprint, store.name, store.facts
        self.account, self.notes = store.account, store.notes

    def __len__(self) -> int:
        return len(self.store)
