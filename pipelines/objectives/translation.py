from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.rows import Rows
from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from .data import Data
from .example_reads import ReadsExamples
from .showing import show_source_and_target
from .writing import (
    SOURCE_AND_TARGET,
    LearnsToWrite,
    TextScores,
    WritesTexts,
    WritingSettings,
    WritingTask,
    batches_of_pairs,
    check_writer,
    pair_collator,
    stored_pairs,
    words_of_pairs,
)

if TYPE_CHECKING:
    from ..data.examples import Examples


@dataclass
class TranslationSettings(WritingSettings):
    source_field: str | None = doc("column that holds the text to translate")
    target_field: str | None = doc("column that holds its translation")
    num_beams: int = doc("beams of the search; 1: greedy", 5, at_least=1, at_most=1000)


class ReadsTranslations(ReadsExamples):
    """Source texts and their translations, with one tokenizer for both languages."""

    legend = SOURCE_AND_TARGET

    def asked_columns(self, there=None) -> dict[str, str]:
        return {"source_field": self.settings.source_field}

    def encoding_key(self) -> list:
        """Further settings that the texts and the encoded examples depend on, as JSON."""
        return []

    def texts(self, source: "Examples"):
        texts, settings = super().texts(source), self.encoding_key()
        texts.key |= {"encoding": settings} if settings else {}
        return texts

    def prepare(self, sources: dict, cache: Path, progress: bool, tokenizer: Any = None) -> Data:
        """Raises UserError for a tokenizer without padding or end-of-text token."""
        data = super().prepare(sources, cache, progress, tokenizer)
        check_writer(self.objective, data.tokenizer)
        return data

    def rows(self, data: Data, source: "Examples", split: str, cache: Path, progress: bool = False) -> Rows:
        return stored_pairs(self, data, source, split, cache, self.encoding_key())

    def _batches(self, data: Data, examples, account):
        def texts_of(batch: list) -> tuple[list[str], list[str], list[str]]:
            source, target = (
                [self.text_in(row, column, field, place) for place, row in batch]
                for field, column in self.columns().items()
            )
            return source, target, target

        return batches_of_pairs(self.settings, data.tokenizer, examples, texts_of)

    def read(self, row: dict, place: str) -> str:
        """The text that the encoder reads."""
        return self.text_in(row, self.settings.source_field, "source_field", place)

    def collator(self, data: Data, packed: bool):
        return pair_collator(data.tokenizer)

    def describe(self, data: Data, rows: Rows) -> str:
        return words_of_pairs(rows)

    def show(self, console, data: Data, rows: Rows, number: int, row: dict) -> None:
        show_source_and_target(console, data, rows, number, row)


@register_objective
class Translation(WritingTask):
    """A text in one language from a text in another, or any other text from a text."""

    name = "translation"
    Settings = TranslationSettings
    Reads, Learns, Scores, Answers = ReadsTranslations, LearnsToWrite, TextScores, WritesTexts
    asks_for, default_metrics = "texts", ("bleu",)
    words = replace(WritingTask.words, sample="translation of {prompt!r}", hub_task="translation")

    def check(self) -> None:
        for name in ("source_field", "target_field"):
            if not getattr(self.settings, name):
                raise UserError(f"task.{name} is not set; translation needs the column of each language, such as en")
        self.check_search()
        super().check()
