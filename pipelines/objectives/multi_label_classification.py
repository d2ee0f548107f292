"""Any number of classes for a text or a pair of texts, such as the subjects of an article."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from ..lazy import np, torch
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.types import show
from .class_task import Answers, ClassTask, NamedClassSettings
from .label_values import held
from .labelled_texts import LabelledTexts, LabelledTextSettings
from .losses import SeveralLabels

IF_MULTI_HOT = "if lists hold a 0 or 1 for each class, set task.labels_are=multi_hot and task.label_names"


@dataclass
class MultiLabelClassificationSettings(NamedClassSettings, LabelledTextSettings):
    label_field: str = doc("column that holds the list of classes, numbers or names", "labels")
    labels_are: Literal["classes", "multi_hot"] = doc(
        "what a list holds: classes: those that the text has, [1, 3]; multi_hot: a 0 or 1 for each of label_names, "
        "[0, 1, 0, 1]",
        "classes",
    )
    threshold: float = doc("a class is given to a text from this probability on", 0.5, above=0, below=1)


@register_objective
class MultiLabelClassification(ClassTask, LabelledTexts):
    """Any number of classes for a text or a pair of texts, each by itself (binary cross-entropy)."""

    name = "multi_label_classification"
    Settings = MultiLabelClassificationSettings
    label_type = "int8[]"
    counted = "labels"
    unit = "answers, one for each class of an example"
    compares = "label_sets"
    default_metrics = ("f1_micro", "f1_macro")
    loss_unit = "nats per label"

    @property
    def is_multi_hot(self) -> bool:
        return self.settings.labels_are == "multi_hot"

    def check(self) -> None:
        super().check()
        if self.is_multi_hot and self.settings.label_names is None:
            raise UserError("task.labels_are=multi_hot needs task.label_names, the classes in the order of the lists")

    # ---- labels

    def classes_in(self, value: Any, place: str) -> list[tuple[str, Any]]:
        if not isinstance(value, (list, tuple)):
            raise UserError(
                f"{self._label_field}: {place} holds {held(value)}, which is no list of classes ([] is none)"
            )
        if self.is_multi_hot:
            return [(place, self.settings.label_names[number]) for number in self.ones(value, place)]
        for one in value:
            if isinstance(one, bool | float):  # classes are whole numbers or names
                raise UserError(f"{self._label_field}: {place} holds {show(one)}, which is no class; {IF_MULTI_HOT}")
        return [(place, one) for one in value]

    def ones(self, value: list | tuple, place: str) -> list[int]:
        """The numbers of the classes that have a 1. Raises UserError for a list that is not a 0 or 1 for each class."""
        names = self.settings.label_names
        if len(value) != len(names) or any(one not in (0, 1) for one in value):
            raise UserError(
                f"{self._label_field}: {place} holds {show(value)}, but task.labels_are=multi_hot takes {len(names)} "
                f"numbers, a 0 or 1 for each class"
            )
        return [number for number, one in enumerate(value) if one]

    def label_identity(self) -> list[str]:
        return ["multi_hot" if self.is_multi_hot else "several", *self.label_names]

    def label_of(self, value: Any, place: str) -> list[int]:
        """A 0 or 1 for each class. Raises UserError for a class named twice, as in a multi-hot list read as classes."""
        numbers = [self.output_of(one, where) for where, one in self.classes_in(value, place)]
        if len(set(numbers)) < len(numbers):
            twice = next(number for number in numbers if numbers.count(number) > 1)
            raise UserError(
                f"{self._label_field}: {place} holds {show(value)}, which names the class {self.label_names[twice]!r} "
                f"twice; name each once, or, {IF_MULTI_HOT}"
            )
        return [int(number in numbers) for number in range(len(self.label_names))]

    def label_facts(self, labels: list[list[int]]) -> dict[str, Any]:
        return {"labels": dict(zip(self.label_names, map(sum, zip(*labels))))}

    def label_words(self, facts: dict[str, Any]) -> str:
        mean = sum(facts["labels"].values()) / facts["examples"]
        return f"{mean:.1f} classes each: {super().label_words(facts)}"

    def balanced(self, counts: list[int]) -> list[float]:
        """(n - n_c) / n_c of n training examples, n_c of them with class c, as torch.nn.BCEWithLogitsLoss advises.

        Raises UserError for a class that every example has: nothing could be learned of it.
        """
        number = self.of_training["examples"]
        if number in counts:
            raise UserError(
                f"task.class_weights=balanced: every training example is of the class "
                f"{self.label_names[counts.index(number)]!r}; give the weights as a list"
            )
        return [(number - count) / count for count in counts]

    # ---- the model

    def config_fields(self) -> dict[str, Any]:
        return super().config_fields() | {"problem_type": "multi_label_classification"}

    def loss(self):
        return SeveralLabels(None if self.settings.class_weights is None else self.class_weights())

    # ---- measuring

    def predictions(self, logits, labels):
        """(B, C) and (B, C) -> float32 (B, 2 C): the probability of each class, then whether a row has it."""
        return torch.cat([logits.float().sigmoid(), labels.float()], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        scores, true = predictions[:, : len(self.label_names)], predictions[:, len(self.label_names) :].astype("int8")
        predicted = (scores >= self.settings.threshold).astype("int8")
        confidence = abs(1 - predicted - scores)  # probability of each answer, "has" or "does not have" the class
        rows = np.arange(len(true)).repeat(len(self.label_names))
        self.answers = Answers(predicted.ravel(), true.ravel(), confidence.ravel(), rows)
        return self.compare(predicted.tolist(), true.tolist(), scores)

    # ---- the report on single classes: each class of a row is one answer

    def judged_classes(self) -> dict[str, Any]:
        from ..metrics.class_report import per_class

        predicted, true = (side.reshape(-1, len(self.label_names)) for side in (self.answers.given, self.answers.true))
        return {"classes": per_class(self.label_names, predicted, true)}

    def said(self, place: int, row: dict) -> tuple[str, str]:
        name, has = self.label_names[place % len(self.label_names)], self.answers.true[place]
        return (f"not {name}", name) if has else (name, f"not {name}")

    def named(self, value: list[int]) -> list[str]:
        return [name for name, has in zip(self.label_names, value) if has]

    def score_names(self, count: int) -> list[str]:
        return self.label_names

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        scores = {output["label"]: output["score"] for output in found}
        classes = [name for name, score in scores.items() if score >= self.settings.threshold]
        return {"prediction": classes, "scores": scores}

    # ---- words

    @classmethod
    def example_of_use(cls, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return super().example_of_use(settings)[0], {"top_k": None}

    def label_shown(self, row: dict) -> str:
        return f"classes {', '.join(self.named(row['labels'].tolist())) or 'none'}"
