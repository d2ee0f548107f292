from dataclasses import dataclass, replace

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from .writing import LearnsToWrite, ReadsToWrite, TextScores, WritesTexts, WritingSettings, WritingTask


@dataclass
class TranslationSettings(WritingSettings):
    source_field: str | None = doc("column that holds the text to translate")
    target_field: str | None = doc("column that holds its translation")
    num_beams: int = doc("beams of the search; 1: greedy", 5, at_least=1, at_most=1000)


@register_objective
class Translation(WritingTask):
    """A text in one language from a text in another, or any other text from a text."""

    name = "translation"
    Settings = TranslationSettings
    Reads, Learns, Scores, Answers = ReadsToWrite, LearnsToWrite, TextScores, WritesTexts
    asks_for, default_metrics = "texts", ("bleu",)
    words = replace(WritingTask.words, sample="translation of {prompt!r}", hub_task="translation")

    def check(self) -> None:
        for name in ("source_field", "target_field"):
            if not getattr(self.settings, name):
                raise UserError(f"task.{name} is not set; translation needs the column of each language, such as en")
        self.check_search()
        super().check()
