"""Any number of classes for a text or a pair of texts, such as the subjects of an article."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ..data.account import Account
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import register_objective
from ..recipes.schema import Recipe, doc
from ..recipes.types import show
from .class_labels import ClassLabels, ClassScores, Judged, LearnsClasses, NamedClassSettings, find_classes
from .label_values import SIGNS, Cell, amount_of, held, list_of, parts_of, sign_in
from .labelled_texts import AnswersTexts, LabelledTextSettings, LabelledTextTask, ReadsLabelledTexts, your_text_or_pair
from .losses import SeveralLabels
from .reads import label_column
from .scores import Scored

IF_MULTI_HOT = "if lists hold a 0 or 1 for each class, set task.labels_are=multi_hot and task.label_names"


@dataclass
class MultiLabelClassificationSettings(NamedClassSettings, LabelledTextSettings):
    label_field: str | list[str] = doc(
        "column that holds the list of classes, numbers or names; in a text as JSON, or between ; | or commas; or "
        "several columns, each with a 0 or 1 for the class of its name",
        "labels",
    )
    labels_are: Literal["classes", "multi_hot"] = doc(
        "what a list holds: classes: those that the text has, [1, 3]; multi_hot: a 0 or 1 for each of label_names, "
        "[0, 1, 0, 1]",
        "classes",
    )
    threshold: float = doc("a class is given to a text from this probability on", 0.5, above=0, below=1)

    @property
    def is_multi_hot(self) -> bool:
        return self.labels_are == "multi_hot" or isinstance(self.label_field, list)


@dataclass(frozen=True)
class LabelSets(ClassLabels):
    """Labels that are sets of classes: a 0 or 1 for each class."""

    counted: str = "labels"
    type: str = "int8[]"
    problem_type: str | None = "multi_label_classification"
    is_multi_hot: bool = False
    columns: Sequence[str] = ()  # of one class each

    def of(self, row: dict, place: str, account: Account | None = None) -> list[int]:
        """A 0 or 1 for each class. Raises UserError for a class named twice, as in a multi-hot list read as classes."""
        value = [row[column] for column in self.columns] if self.columns else row[self.column]
        classes = [one for pair in self.classes_in(value, place) for one in self._parted(*pair, account)]
        numbers = [self.number(one, where, account) for where, one in classes]
        if len(set(numbers)) < len(numbers) and not self.classes.meaning.identity():
            twice = next(number for number in numbers if numbers.count(number) > 1)
            raise UserError(
                f"{self.classes.field}: {place} holds {show(value)}, which names the class {self.names[twice]!r} "
                f"twice; name each once, or, {IF_MULTI_HOT}"
            )
        return [int(number in numbers) for number in range(len(self.names))]

    def _parted(self, place: str, value: Any, account: Account | None) -> list[tuple[str, Any]]:
        """(place, class) of a value; of a Cell that is no class those that its surest sign separates."""
        if not isinstance(value, Cell) or self.classes.has(value):
            return [(place, value)]
        sign = sign_in([value])
        if sign is not None and account is not None:
            hint = "task.label_names keeps names whole"
            account.read_as("label", "", f"read as several, between {SIGNS[sign]}", hint=hint)
        return [(place, part) for part in parts_of({value: 1})]

    def identity(self) -> list[str]:
        return ["multi_hot" if self.is_multi_hot else "several", *super().identity()]

    def facts(self, labels: list[list[int]]) -> dict[str, Any]:
        return {"labels": dict(zip(self.names, map(sum, zip(*labels))))}

    def words(self, facts: dict[str, Any]) -> str:
        mean = sum(facts["labels"].values()) / facts["examples"]
        return f"{mean:.1f} classes each: {super().words(facts)}"

    def chosen(self, label: list[int]) -> list[str]:
        """The names of the classes that have a 1."""
        return [name for name, has in zip(self.names, label) if has]

    def shown(self, label: Any) -> str:
        return f"classes {', '.join(self.chosen(label.tolist())) or 'none'}"


class LearnsLabelSets(LearnsClasses):
    """Each class by itself, by binary cross-entropy."""

    def loss(self):
        return SeveralLabels(None if self.settings.class_weights is None else self._weights())

    def _balanced(self, counts: list[int], examples: int) -> list[float]:
        """(n - n_c) / n_c of n training examples, n_c of them with class c, as torch.nn.BCEWithLogitsLoss advises.

        Raises UserError for a class that every example has: nothing could be learned of it.
        """
        if examples in counts:
            raise UserError(
                f"task.class_weights=balanced: every training example is of the class "
                f"{self.data.labels.names[counts.index(examples)]!r}; give the weights as a list"
            )
        return [(examples - count) / count for count in counts]


class LabelSetScores(ClassScores):
    """Metrics of sets of classes; in the report each class of a row is one answer."""

    unit = "answers, one for each class of an example"

    def predictions(self, logits, labels):
        """(B, C) and (B, C) -> float32 (B, 2 C): the probability of each class, then whether a row has it."""
        return torch.cat([logits.float().sigmoid(), labels.float()], dim=-1)

    def scored(self, predictions) -> Scored:
        number = len(self.data.labels.names)
        scores, true = predictions[:, :number], predictions[:, number:].astype("int8")
        predicted = (scores >= self.settings.threshold).astype("int8")
        confidence = abs(1 - predicted - scores)  # probability of each answer, "has" or "does not have" the class
        judged = Judged(predicted.ravel(), true.ravel(), confidence.ravel(), np.arange(len(true)).repeat(number))
        return self._compare(predicted.tolist(), true.tolist(), scores, judged=judged)

    def _judged_classes(self, judged: Judged) -> dict[str, Any]:
        from ..metrics.class_report import per_class

        predicted, true = (side.reshape(-1, len(self.data.labels.names)) for side in (judged.given, judged.true))
        return {"classes": per_class(self.data.labels.names, predicted, true)}

    def _said(self, judged: Judged, place: int, row: dict) -> tuple[str, str]:
        name, has = self.data.labels.names[place % len(self.data.labels.names)], judged.true[place]
        return (f"not {name}", name) if has else (name, f"not {name}")

    def named(self, value: list[int] | int) -> list[str] | str:
        return self.data.labels.names[value] if isinstance(value, int) else self.data.labels.chosen(value)


@register_objective
class MultiLabelClassification(LabelledTextTask):
    """Any number of classes for a text or a pair of texts, each by itself (binary cross-entropy)."""

    name = "multi_label_classification"
    Settings = MultiLabelClassificationSettings
    Reads, Learns, Scores, Answers = ReadsLabelledTexts, LearnsLabelSets, LabelSetScores, AnswersTexts
    compares, gives = "label_sets", ("prediction", "scores")
    default_metrics = ("f1_micro", "f1_macro")
    row_labels = {"labels": ("num_labels",)}
    words = replace(
        LabelledTextTask.words,
        loss="nats per label",
        example=lambda settings: (your_text_or_pair(settings)[0], {"top_k": None}),  # whose answer has all classes
    )

    def check(self) -> None:
        super().check()
        if self.settings.is_multi_hot and self.settings.label_names is None:
            raise UserError("task.labels_are=multi_hot needs task.label_names, the classes in the order of the lists")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        columns = self.settings.label_field
        if isinstance(columns, list) and self.settings.label_names is None:
            self.settings = replace(self.settings, label_names=columns)

    def classes_in(self, value: Any, place: str) -> list[tuple[str, Any]]:
        _, field = label_column(self.settings)
        value = list_of(value) if isinstance(value, str) else value
        if isinstance(self.settings.label_field, list) and not isinstance(value, list):
            return []  # one of the columns, which is tried alone
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{field}: {place} holds {held(value)}, which is no list of classes ([] is none)")
        if self.settings.is_multi_hot:
            return [(place, self.settings.label_names[number]) for number in self._ones(value, place)]
        for one in value:
            if isinstance(one, bool | float):  # classes are whole numbers or names
                raise UserError(f"{field}: {place} holds {show(one)}, which is no class; {IF_MULTI_HOT}")
        return [(place, one) for one in value]

    def _ones(self, value: list | tuple, place: str) -> list[int]:
        """The numbers of the classes that have a 1. Raises UserError for a list that is not a 0 or 1 for each class."""
        names = self.settings.label_names
        value = [one if isinstance(one, bool) else amount_of(one) for one in value]
        if len(value) != len(names) or any(one not in (0, 1) for one in value):
            raise UserError(
                f"{label_column(self.settings)[1]}: {place} holds {show(value)}, but task.labels_are=multi_hot takes "
                f"{len(names)} numbers, a 0 or 1 for each class"
            )
        return [number for number, one in enumerate(value) if one]

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        scores = {output["label"]: output["score"] for output in found}
        classes = [name for name, score in scores.items() if score >= self.settings.threshold]
        return {"prediction": classes, "scores": scores}

    def labels(self, reads: ReadsLabelledTexts, sources: dict) -> LabelSets:
        columns = self.settings.label_field if isinstance(self.settings.label_field, list) else ()
        kind = partial(LabelSets, is_multi_hot=self.settings.is_multi_hot, columns=columns)
        return find_classes(reads, sources, kind=kind)
