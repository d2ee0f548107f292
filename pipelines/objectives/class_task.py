"""Base of the tasks whose labels are classes: names and numbers of the classes, weights, metrics, reports."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UserError
from ..lazy import np, torch
from ..plugins import METRICS
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from .label_values import Classes, are_unnamed, check_class, check_names, class_notes, listed, the_value
from .losses import WeightedClasses

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows


@dataclass
class NamedClassSettings(ObjectiveSettings):
    """Settings of all tasks whose labels are classes."""

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
    """Settings of tasks with one class per example."""

    label_field: str = doc("column that holds the class, a number or a name", "label")


@dataclass
class Answers:
    """The model's answers in one pass over rows: arrays (N,) with an entry per answer, in the order of the rows.

    There is one answer per example; with tags one per word, with several classes one per class of each example. given,
    true: predicted and right class numbers, or 0 and 1. confidence: float32, the probability of the predicted answer.
    rows: index of each answer's row in the pass, from 0; None: row i has answer i.
    """

    given: "np.ndarray"
    true: "np.ndarray"
    confidence: "np.ndarray"
    rows: "np.ndarray | None" = None

    def row(self, place: int) -> int:
        """The index of the row that the answer at index `place` belongs to."""
        return place if self.rows is None else int(self.rows[place])


class ClassScores:
    """Metrics of rows with one class; the objective is its own scorer (Measuring.scorer)."""

    compares = "classes"
    default_metrics = ("accuracy",)
    validates_metrics = True
    answers: Answers | None = None

    def predictions(self, logits, labels):
        """Logits (B, C), labels (B,) -> float32 (B, 3): predicted class, right class, the predicted one's probability.

        (B, 2 + C), with the probabilities of all classes, where a metric needs them or `keeps_scores` is set.
        """
        shares = logits.float().softmax(-1)
        if not self.keeps_scores and not any(METRICS[name].compares == "probabilities" for name in self.metrics):
            shares = shares.amax(-1, keepdim=True)
        return torch.cat([torch.stack([logits.argmax(-1), labels], dim=-1).float(), shares], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of the predictions of all rows, an array of shape (rows, 3) or (rows, 2 + C)."""
        predicted, true = predictions[:, :2].astype("int32").T
        self.answers = Answers(predicted, true, predictions[:, 2:].max(-1))
        probabilities = predictions[:, 2:] if predictions.shape[1] > 3 else None
        return self.compare(predicted.tolist(), true.tolist(), probabilities)


class ClassTask(ClassScores):
    """Base of all tasks with one or several classes per example; the model answers with the class's name.

    The classes are the recipe's task.label_names, or else those in the examples of all splits. `prepare` raises
    UserError for labels that are no classes, for fewer than two classes, or for a metric of two classes with more.
    counted: key of the class counts in the rows' facts. unit: what the class report counts, where that is not rows.
    """

    counted: ClassVar[str] = "classes"
    unit: ClassVar[str] = ""

    @property
    def label_column(self) -> str:
        """The column that holds the class or classes of an example: the last of `columns`."""
        return [*self.columns().values()][-1]

    @property
    def _label_field(self) -> str:
        """How errors name that column: `task.label_field='label'`."""
        setting, column = [*self.columns().items()][-1]
        return f"task.{setting}={column!r}"

    def classes_in(self, value: Any, place: str) -> Iterable[tuple[str, Any]]:
        """(place, class) of each class in a column's value. Raises UserError for a value that cannot hold classes."""
        return the_value(value, place)

    def check(self) -> None:
        super().check()
        check_names(self.settings.label_names)
        weights = self.settings.class_weights
        if isinstance(weights, list) and (min(weights, default=0) < 0 or not any(weights)):
            raise UserError(f"task.class_weights={show(weights)} must be numbers from 0 on, and one above it")

    def learned_names(self, names: list[str]) -> list[str]:
        """The model's class names for the classes in the data, without repeats: it may learn several as one."""
        return names

    def adopt(self, config, source) -> None:
        """Take the class names from the config of the model that is measured, in the order of its outputs.

        Raises UserError where the recipe, or else the data, names other classes or another order.
        """
        recipe, known = self.recipe, names_of_outputs(config)
        given = self.settings.label_names
        names = given or source.source.class_names(self.label_column)
        learned = known if names is None else self.learned_names(list(names))
        if given is None and sorted(learned) == sorted(known) and learned != known:
            names = None  # the same classes, which the data name, too
        if names is None or learned == known or (are_unnamed(known) and len(learned) == len(known)):
            # The one setting of a recipe that is still changed after it was made.
            object.__setattr__(self.settings, "label_names", known if names is None else list(names))
        else:
            raise UserError(
                f"MODEL={recipe.model.name_or_path} tells {', '.join(known)} apart, but the classes of {recipe.name} "
                f"are {', '.join(learned)}; if they mean the same, in this order, add "
                f"task.label_names='{json.dumps(known, ensure_ascii=False)}'"
            )

    def try_examples(self, examples: list, prepared: bool) -> None:
        super().try_examples(examples, prepared)
        for place, row in examples:
            for where, value in self.classes_in(row[self.label_column], place):
                if not prepared:  # else the names were looked up
                    check_class(value, self._label_field, where)

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        of_column = self._label_field, self.label_column, splits, cache
        self.classes = Classes(*of_column, self.settings.label_names, self.classes_in)
        self.label_names = self.learned_names(self.classes.names)
        if self.recipe.model.name_or_path is not None:
            self._follow_checkpoint(lambda known: Classes(*of_column, known, self.classes_in))
        self._outputs = {name: number for number, name in enumerate(self.label_names)}
        weights, number = self.settings.class_weights, len(self.label_names)
        if isinstance(weights, list) and len(weights) != number:
            raise UserError(
                f"task.class_weights={show(weights)} must be {number} numbers, for {', '.join(self.label_names[:8])}"
            )
        self.check_metrics()

    def _follow_checkpoint(self, named: Callable[[list[str]], Classes]) -> None:
        """Number the classes as the checkpoint's outputs, if these are the same ones; else its head is not kept.

        named: makes the Classes of given names. Raises UserError where the recipe gives the same names another order.
        """
        known, found = names_of_outputs(self.config), self.classes
        if sorted(self.label_names) != sorted(known) and not found.numbered:
            of_checkpoint = named(known)
            values = range(len(found.names)) if are_unnamed(found.names) else found.names
            with suppress(UserError):  # of a class that the checkpoint does not have
                numbers = {of_checkpoint.number(value, "") for value in values}
                if len(numbers) == len(values) == len(known):
                    self.classes, self.label_names = of_checkpoint, self.learned_names(known)
        if sorted(self.label_names) == sorted(known):
            in_order = self.settings.label_names is not None or isinstance(self.settings.class_weights, list)
            if in_order and self.label_names != known:
                raise UserError(
                    f"model.name_or_path={self.recipe.model.name_or_path} has the classes {', '.join(known)}, in this "
                    f"order; write task.label_names={show(known)}, and count them alike in data and weights"
                )
            self.label_names = known
        elif not (found.numbered and are_unnamed(known) and len(self.label_names) == len(known)):
            self.new_head = (
                f"{self.recipe.model.name_or_path} tells {listed(known)} apart, not {listed(self.label_names)}"
            )

    def named(self, value: int) -> str:
        return self.label_names[value]

    def config_fields(self) -> dict:
        """With the classes' names, by which `pipeline()` answers."""
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
        """The label of an example. Raises UserError."""
        return self.output_of(value, place)

    def output_of(self, value, place: str) -> int:
        """The number of the model's output for the class that a value means. Raises UserError."""
        return self._outputs[self.classes.names[self.classes.number(value, place)]]

    def class_histogram(self, labels) -> dict[str, int]:
        """{name of a class: how often its number is in `labels`}."""
        counts = torch.bincount(torch.as_tensor(labels, dtype=torch.long), minlength=len(self.label_names)).tolist()
        return dict(zip(self.label_names, counts))

    # ---- the loss

    def splits_to_measure(self, split: str, metrics: Sequence[str]) -> list[str]:
        """Also the training split where the class weights are computed from it."""
        splits = super().splits_to_measure(split, metrics)
        return [*splits, "train"] if self.settings.class_weights == "balanced" and "train" not in splits else splits

    def completed(self, rows: dict, cache: Path, progress: bool) -> dict:
        """The rows with notes on missing and rare classes; the training rows' facts are kept for balanced weights."""
        self.of_training = rows["train"].facts if "train" in rows else {}
        data = self.recipe.data
        has_own = {"validation": data.validation_files or data.validation_split, "test": data.test_fraction is None}
        for split, one in super().completed(rows, cache, progress).items():
            counts = one.facts.get("classes") or {}
            one.notes = [*one.notes, *class_notes(split, counts, not data.by_class and not has_own.get(split))]
        return rows

    def class_weights(self) -> list[float]:
        """The weight of each class: as set, or balanced. Raises UserError for a class without a training example."""
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
        """n / (C n_c) for each of C classes, of which n_c (`counts`, none 0) of n training examples are.

        King and Zeng 2001, section 4.2; scikit-learn's "balanced".
        """
        return [sum(counts) / (len(counts) * count) for count in counts]

    def loss(self):
        return None if self.settings.class_weights is None else WeightedClasses(self.class_weights())

    # ---- the report on single classes after a pass over some rows

    def class_report(self, rows: "Rows", numbers: Sequence[int], source: "Examples") -> dict[str, Any] | None:
        """{"unit", "classes", "matrix", "confused", "calibration", "mistakes"}, as metrics/class_report.py makes them.

        unit: what is counted. mistakes: the most confident wrong answers, each {"row", "place", "confidence", "given",
        "true"} and "text" or "image" (a PNG in base64). row: the row's number in the split. place: where the example
        stands in the data, such as file and line.
        """
        from ..metrics.class_report import calibration, surest_mistakes

        if self.answers is None:
            return None
        answers, right = self.answers, self.answers.given == self.answers.true
        chosen = surest_mistakes(answers.confidence, right)
        if answers.row(len(right) - 1) + 1 < len(numbers):  # rows without a label have no answer
            numbers = [number for number in numbers if bool((rows[number]["labels"] >= 0).any())]
        of_rows, places = [numbers[answers.row(place)] for place in chosen], {}
        if not rows.facts.get("empty"):  # sentences without a word have no row: row numbers differ
            places = places_of(source, self.label_column, of_rows)
        return {
            "unit": self.unit or f"{self.row_noun}s",
            **self.judged_classes(),
            "calibration": calibration(answers.confidence, right),
            "mistakes": [
                {"row": number, "place": places.get(number), "confidence": float(answers.confidence[place])}
                | dict(zip(("given", "true"), self.said(place, rows[number])))
                | self.as_read(place, rows[number])
                for place, number in zip(chosen, of_rows)
            ],
        }

    def judged_classes(self) -> dict[str, Any]:
        """ "classes", "matrix" and "confused" of the report."""
        from ..metrics.class_report import confusion, per_class

        arrays, names = self.answers, self.label_names
        return {"classes": per_class(names, arrays.given, arrays.true)} | confusion(names, arrays.given, arrays.true)

    def said(self, place: int, row: dict) -> tuple[str, str]:
        """(the model's answer, the right answer) in words. place: index into `answers`. row: the answer's row."""
        return self.label_names[self.answers.given[place]], self.label_names[self.answers.true[place]]

    def as_read(self, place: int, row: dict) -> dict[str, str]:
        """The "text" or "image" of an answer's row, as the model reads it."""
        return {"text": " | ".join(texts_of_row(row["input_ids"].tolist(), self.tokenizer))}


def names_of_outputs(config) -> list[str]:
    """The names of the classes in a config, in the order of the model's outputs."""
    return [str(name) for _, name in sorted(config.id2label.items())]


def places_of(source: "Examples", column: str, numbers: Iterable[int]) -> dict[int, str]:
    """{number of an example: where it stands in the data, such as file and line}. column: the only one to be read."""
    chosen = set(numbers)
    counted = zip(range(max(chosen, default=-1) + 1), source.only(column))
    return {number: place for number, (place, _) in counted if number in chosen}


def texts_of_row(ids: Sequence[int], tokenizer) -> list[str]:
    """The texts of a row as the model reads them: what lies between its special tokens."""
    special = set(tokenizer.all_special_ids)
    runs = [list(run) for is_special, run in groupby(ids, special.__contains__) if not is_special]
    return [text for run in runs if (text := tokenizer.decode(run).strip())]
