from dataclasses import dataclass

from ..plugins import register_objective
from .answering import OF_SCORES
from .class_labels import ClassScores, ClassSettings, LearnsClasses
from .label_values import the_value
from .labelled_texts import AnswersTexts, LabelledTextSettings, LabelledTextTask, ReadsLabelledTexts


@dataclass
class SequenceClassificationSettings(ClassSettings, LabelledTextSettings):
    """Texts, and one class for each."""


@register_objective
class SequenceClassification(LabelledTextTask):
    """One class for a text or a pair of texts."""

    name = "sequence_classification"
    taught = "classes"
    compares = asks_for = "classes"
    gives = OF_SCORES
    default_metrics = ("accuracy",)
    Settings = SequenceClassificationSettings
    Reads, Learns, Scores, Answers = ReadsLabelledTexts, LearnsClasses, ClassScores, AnswersTexts
    classes_in = staticmethod(the_value)
