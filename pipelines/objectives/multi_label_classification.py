"""Any number of classes for a text or a pair of texts, such as the subjects of an article."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from .classes import ClassTask, held
from .labelled_texts import LabelledTexts, LabelledTextSettings


@dataclass
class MultiLabelClassificationSettings(LabelledTextSettings):
    label_field: str = doc("column that holds the list of classes, numbers or names", "labels")
    label_names: list[str] | None = doc(
        "names of the classes, in the order of their numbers; null: taken from the data"
    )
    threshold: float = doc("a class is given to a text from this probability on", 0.5, above=0, below=1)


@register_objective
class MultiLabelClassification(ClassTask, LabelledTexts):
    """Any number of classes for a text or a pair of texts, each by itself (binary cross-entropy)."""

    name = "multi_label_classification"
    Settings = MultiLabelClassificationSettings
    compares = "label_sets"
    default_metrics = ("f1_micro", "f1_macro")
    loss_unit = "nats per label"

    # ---- labels

    def classes_in(self, value: Any, place: str) -> list[tuple[str, Any]]:
        if not isinstance(value, (list, tuple)):
            raise UserError(
                f"{self._label_field}: {place} holds {held(value)}, which is no list of classes ([] is none)"
            )
        return [(place, one) for one in value]

    def label_type(self):
        import pyarrow

        return pyarrow.list_(pyarrow.int8())

    def label_identity(self) -> list[str]:
        return ["several", *self.label_names]

    def label_of(self, value: Any, place: str) -> list[int]:
        """Of each class 0 or 1."""
        given = {self.class_of(one, where) for where, one in self.classes_in(value, place)}
        return [int(number in given) for number in range(len(self.label_names))]

    def label_facts(self, labels: list[list[int]]) -> dict[str, Any]:
        return {"labels": dict(zip(self.label_names, map(sum, zip(*labels))))}

    def label_words(self, facts: dict[str, Any]) -> str:
        mean = sum(facts["labels"].values()) / facts["examples"]
        return f"{mean:.1f} classes each: " + ", ".join(f"{name} {n:,}" for name, n in facts["labels"].items())

    # ---- the model

    def config_fields(self) -> dict[str, Any]:
        return super().config_fields() | {"problem_type": "multi_label_classification"}

    def loss(self):
        from .losses import SeveralLabels

        return SeveralLabels()

    # ---- measuring

    def predictions(self, logits, labels):
        """(B, C) and (B, C) -> (B, 2 C): for each class whether a row is given it, then whether it has it."""
        import torch

        given = logits.float().sigmoid() >= self.settings.threshold
        return torch.cat([given.to(labels.dtype), labels], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        from ..metrics import compute_metrics

        number = len(self.label_names)
        given, true = predictions[:, :number].tolist(), predictions[:, number:].tolist()
        return compute_metrics(self.recipe.evaluation.metrics, given, true)[0]

    def named(self, value: list[int]) -> list[str]:
        return [name for name, given in zip(self.label_names, value) if given]

    # ---- words

    @classmethod
    def example_of_use(cls, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return super().example_of_use(settings)[0], {"top_k": None}

    def legend(self):
        from .showing import PREDICTED, marked

        return marked("the text as the model reads it, ", ("special tokens", PREDICTED), " included, and its classes")

    def show(self, console, rows, number: int, row: dict) -> None:
        given = [name for name, label in zip(self.label_names, row["labels"].tolist()) if label]
        self.show_label(console, number, row, f"classes {', '.join(given) or 'none'}")
