from dataclasses import dataclass

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

    def label_shown(self, row: dict) -> str:
        return f"class {self.label_names[int(row['labels'])]}"
