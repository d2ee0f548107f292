"""Tasks whose answer is one of a few classes: names and numbers of the classes, and what is measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UserError
from ..lazy import np, torch
from ..plugins import METRICS
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from .label_values import Classes, are_unnamed, check_class, check_names, class_notes, the_value
from .losses import WeightedClasses

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows


@dataclass
class NamedClassSettings(ObjectiveSettings):
    """What tasks have whose labels are one class each."""

    label_names: list[str] | None = doc(
        "names of the classes, in the order of their numbers; null: taken from the data"
    )
    class_weights: list[float] | Literal["balanced"] | None = doc(
        "what each class counts in the loss, in the order of the classes (of several in a text: what having it counts, "
        "beside not having it); balanced: the more, the rarer it is in the training examples, so that all classes "
        "together count alike (of several: having one as much as not having it); null: 1"
    )


@dataclass
class ClassSettings(NamedClassSettings):
    """What tasks of one class per example have."""

    label_field: str = doc("column that holds the class, a number or a name", "label")


@dataclass
class Answers:
    """Arrays (N,), an entry for each answer, in the order of the rows: some bytes each.

    An answer is of an example, of tags of a word, of several classes of each class of an example. given, true: numbers
    of classes, or 0 and 1. confidence: float32, the probability of what is given. rows: which of the rows an entry is
    of, from 0; None: one each.
    """

    given: "np.ndarray"
    true: "np.ndarray"
    confidence: "np.ndarray"
    rows: "np.ndarray | None" = None

    def row(self, place: int) -> int:
        """Which of the rows the entry at a place is of."""
        return place if self.rows is None else int(self.rows[place])


class ClassScores:
    """What is measured where a row has one class: the objective itself is its scorer."""

    compares = "classes"
    default_metrics = ("accuracy",)
    validates_metrics = True
    answers: Answers | None = None

    def predictions(self, logits, labels):
        """(B, C) and (B,) -> float32 (B, 3): the class a row is given, the one it has, the probability of the former.

        (B, 2 + C), with the probabilities of all classes, where a metric compares them or they are kept.
        """
        shares = logits.float().softmax(-1)
        if not self.keeps_scores and not any(METRICS[name].compares == "probabilities" for name in self.metrics):
            shares = shares.amax(-1, keepdim=True)
        return torch.cat([torch.stack([logits.argmax(-1), labels], dim=-1).float(), shares], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of the predictions of all rows, an array of shape (rows, 3) or (rows, 2 + C)."""
        given, true = predictions[:, :2].astype("int32").T
        self.answers = Answers(given, true, predictions[:, 2:].max(-1))
        probabilities = predictions[:, 2:] if predictions.shape[1] > 3 else None
        return self.compare(given.tolist(), true.tolist(), probabilities)


class ClassTask(ClassScores):
    """What all tasks of classes share, one per example or several; the class's name is the model's answer.

    The recipe's task.label_names are the classes, else they are taken from the examples of all splits. `prepare` raises
    UserError for labels that are no classes, fewer than two classes, or a metric of two classes for more of them.
    counted: the fact of rows that counts them. unit: what the report on single classes counts, where not rows.
    """

    counted: ClassVar[str] = "classes"
    unit: ClassVar[str] = ""
    _names_are_the_models = False  # neither the recipe nor the data name the classes

    @property
    def label_column(self) -> str:
        """The column that holds the class, or the classes, of an example: the last one."""
        return [*self.columns().values()][-1]

    @property
    def _label_field(self) -> str:
        """How errors name it: `task.label_field='label'`."""
        setting, column = [*self.columns().items()][-1]
        return f"task.{setting}={column!r}"

    def classes_in(self, value: Any, place: str) -> Iterable[tuple[str, Any]]:
        """(place, class) of each class in a column's value; raises UserError for what holds none."""
        return the_value(value, place)

    def check(self) -> None:
        super().check()
        check_names(self.settings.label_names)
        weights = self.settings.class_weights
        if isinstance(weights, list) and (min(weights, default=0) < 0 or not any(weights)):
            raise UserError(f"task.class_weights={show(weights)} must be numbers from 0 on, and one above it")

    def learned_names(self, names: list[str]) -> list[str]:
        """What the model calls classes of these names in the data, each once; several may become one."""
        return names

    def adopt(self, config, source) -> None:
        """The classes of the model that is measured, in the order of its outputs.

        Raises UserError where the recipe, or else the data, has other classes or another order of them.
        """
        recipe, model = self.recipe, [config.id2label[number] for number in range(config.num_labels)]
        wanted = self.settings.label_names or source.source.class_names(self.label_column)
        learned = model if wanted is None else self.learned_names(list(wanted))
        if learned == model or (are_unnamed(model) and len(learned) == len(model)):
            self._names_are_the_models = wanted is None
            self.settings.label_names = model if wanted is None else list(wanted)
        else:
            raise UserError(
                f"MODEL={recipe.model.name_or_path} tells {', '.join(model)} apart, but the classes of {recipe.name} "
                f"are {', '.join(learned)}; if they mean the same, in this order, add "
                f"task.label_names='[{', '.join(model)}]'"
            )

    def try_examples(self, examples: list, prepared: bool) -> None:
        super().try_examples(examples, prepared)
        for place, row in examples:
            for where, value in self.classes_in(row[self.label_column], place):
                check_class(value, self._label_field, where)

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        given, in_order = self.settings.label_names, not self._names_are_the_models
        self.classes = Classes(
            self._label_field, self.label_column, splits, cache, given, in_order, classes_in=self.classes_in
        )
        self.label_names = self.learned_names(self.classes.names)
        weights, number = self.settings.class_weights, len(self.label_names)
        if isinstance(weights, list) and len(weights) != number:
            raise UserError(
                f"task.class_weights={show(weights)} must be {number} numbers, for {', '.join(self.label_names[:8])}"
            )
        self.check_metrics()

    def named(self, value: int) -> str:
        return self.label_names[value]

    def config_fields(self) -> dict:
        """The classes' names are what `pipeline()` answers with."""
        return {
            **super().config_fields(),
            "num_labels": len(self.label_names),
            "id2label": dict(enumerate(self.label_names)),
            "label2id": {name: number for number, name in enumerate(self.label_names)},
            "problem_type": "single_label_classification",
        }

    def label_identity(self) -> list[str]:
        return self.label_names

    def label_facts(self, labels) -> dict[str, Any]:
        return {self.counted: self.class_histogram(labels)}

    def label_words(self, facts: dict[str, Any]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in facts[self.counted].items())

    def label_of(self, value, place: str) -> Any:
        """The number of the class that a label means. Raises UserError."""
        return self.classes.number(value, place)

    def class_histogram(self, labels) -> dict[str, int]:
        """How many of some class numbers are of which class, by name."""
        found = torch.bincount(torch.as_tensor(labels, dtype=torch.long), minlength=len(self.label_names)).tolist()
        return dict(zip(self.label_names, found))

    # ---- the loss

    def splits_to_measure(self, split: str, metrics: Sequence[str]) -> list[str]:
        """The training split as well where it gives the classes' weights."""
        found = super().splits_to_measure(split, metrics)
        return [*found, "train"] if self.settings.class_weights == "balanced" and "train" not in found else found

    def completed(self, rows: dict, cache: Path, progress: bool) -> dict:
        """The rows with what stands out about their classes in the notes; those of training give balanced weights."""
        self.of_training = rows["train"].facts if "train" in rows else {}
        data = self.recipe.data
        has_own = {"validation": data.validation_files or data.validation_split, "test": data.test_fraction is None}
        for split, own in super().completed(rows, cache, progress).items():
            counts = own.facts.get("classes") or {}
            own.notes = [*own.notes, *class_notes(split, counts, not data.by_class and not has_own.get(split))]
        return rows

    def class_weights(self) -> list[float]:
        """The weight of each class: as given, or balanced. Raises UserError for a class without a training example."""
        if self.settings.class_weights != "balanced":
            return self.settings.class_weights
        counts = [self.of_training[self.counted].get(name, 0) for name in self.label_names]
        if 0 in counts:
            raise UserError(
                f"task.class_weights=balanced: no training example is of the class "
                f"{self.label_names[counts.index(0)]!r}; give the weights as a list"
            )
        return self.balanced(counts)

    def balanced(self, counts: list[int]) -> list[float]:
        """n / (C n_c) of n training examples, n_c of them of class c of C (`counts`, none 0).

        King and Zeng 2001, section 4.2; scikit-learn's "balanced".
        """
        return [sum(counts) / (len(counts) * count) for count in counts]

    def loss(self):
        return None if self.settings.class_weights is None else WeightedClasses(self.class_weights())

    # ---- how single classes came off in the last pass over some rows

    def class_report(self, rows: "Rows", numbers: Sequence[int], source: "Examples") -> dict[str, Any] | None:
        """{"unit", "classes", "matrix", "confused", "calibration", "mistakes"}, as metrics/class_report.py has them.

        unit: what is counted. mistakes: the wrong answers that were surest, {"row", "place", "confidence", "given",
        "true"} and "text" or "image" (a PNG in base64) of each. row: its number in the split. place: where it stands in
        the data, such as file and line.
        """
        from ..metrics.class_report import calibration, surest_mistakes

        if self.answers is None:
            return None
        found, right = self.answers, self.answers.given == self.answers.true
        chosen = surest_mistakes(found.confidence, right)
        if found.row(len(right) - 1) + 1 < len(numbers):  # rows without a label have no answer
            numbers = [number for number in numbers if bool((rows[number]["labels"] >= 0).any())]
        of_rows, places = [numbers[found.row(place)] for place in chosen], {}
        if not rows.facts.get("empty"):  # of sentences without a word there is no row, and numbers are others
            places = places_of(source, self.label_column, of_rows)
        return {
            "unit": self.unit or f"{self.row_noun}s",
            **self.judged_classes(),
            "calibration": calibration(found.confidence, right),
            "mistakes": [
                {"row": number, "place": places.get(number), "confidence": float(found.confidence[place])}
                | dict(zip(("given", "true"), self.said(place, rows[number])))
                | self.as_read(place, rows[number])
                for place, number in zip(chosen, of_rows)
            ],
        }

    def judged_classes(self) -> dict[str, Any]:
        """ "classes", "matrix" and "confused" of the report."""
        from ..metrics.class_report import confusion, per_class

        found, names = self.answers, self.label_names
        return {"classes": per_class(names, found.given, found.true)} | confusion(names, found.given, found.true)

    def said(self, place: int, row: dict) -> tuple[str, str]:
        """(what was said, what is right) of an answer; row: that it is of."""
        return self.label_names[self.answers.given[place]], self.label_names[self.answers.true[place]]

    def as_read(self, place: int, row: dict) -> dict[str, str]:
        """The "text" or "image" of an answer's row, as the model reads it."""
        return {"text": " | ".join(texts_of_row(row["input_ids"].tolist(), self.tokenizer))}


def places_of(source: "Examples", column: str, numbers: Iterable[int]) -> dict[int, str]:
    """Where examples stand in their data, such as file and line, by number. column: one to read, beside no other."""
    wanted = set(numbers)
    counted = zip(range(max(wanted, default=-1) + 1), source.only(column))
    return {number: place for number, (place, _) in counted if number in wanted}


def texts_of_row(ids: Sequence[int], tokenizer) -> list[str]:
    """The texts of a row as the model reads them: what lies between its special tokens."""
    special = set(tokenizer.all_special_ids)
    runs = [list(run) for is_special, run in groupby(ids, special.__contains__) if not is_special]
    return [text for run in runs if (text := tokenizer.decode(run).strip())]
