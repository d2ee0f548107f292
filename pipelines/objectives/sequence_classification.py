from dataclasses import dataclass
from typing import Any

from ..plugins import register_objective
from .class_task import ClassSettings, ClassTask
from .labelled_texts import LabelledTexts, LabelledTextSettings


@dataclass
class SequenceClassificationSettings(ClassSettings, LabelledTextSettings):
    """Texts, and one class for each."""


@register_objective
class SequenceClassification(ClassTask, LabelledTexts):
    """One class for a text or a pair of texts."""

    name = "sequence_classification"
    taught = "classes"
    label_type = "int32"
    asks_for = "classes"
    Settings = SequenceClassificationSettings
    stratified_by = ClassTask.label_column

    def label_identity(self) -> list[str]:
        return self.label_names

    def label_of(self, value: Any, place: str) -> int:
        return self.class_of(value, place)

    def label_facts(self, labels: list[int]) -> dict[str, Any]:
        return {"classes": self.class_histogram(labels)}

    def label_words(self, facts: dict[str, Any]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in facts["classes"].items())

    def show(self, console, rows, number: int, row: dict) -> None:
        self.show_label(console, number, row, f"class {self.label_names[int(row['labels'])]}")
