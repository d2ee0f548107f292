"""Labels that are classes: settings, the classes of data and model, their weights in the loss, their scores."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from ..data.account import Account
from ..data.account_words import listed
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import METRICS
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from .base import Objective
from .data import Data
from .label_values import Classes, Meaning, are_unnamed, check_class, check_names, class_notes, the_value
from .learns import Learns
from .losses import WeightedClasses
from .reads import Reads, label_column
from .scores import Scored, Scores
from .showing import as_png

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows

MOST_PIXELS = 96  # on a side of an image in a report


@dataclass
class NamedClassSettings(ObjectiveSettings):
    """Settings of all tasks whose labels are classes."""

    label_names: list[str] | None = doc(
        "names of the classes, in the order of their numbers; null: taken from the data"
    )
    label_map: dict[str, str] | None = doc(
        "the classes of values of the data, such as {'0': bad, '1': good, Biling: Billing}; others are as they are"
    )
    merge_labels: bool = doc("names that differ only in case, spaces, _, - or a full stop at the end are one", False)
    class_weights: list[float] | Literal["balanced"] | None = doc(
        "what each class counts in the loss, in the order of the classes (of several in a text: what having it counts, "
        "beside not having it); balanced: the more, the rarer it is in the training examples, so that all classes "
        "together count alike (of several: having one as much as not having it); null: 1"
    )

    def __post_init__(self):
        """Raise UserError for names or weights of classes that are none."""
        check_names(self.label_names)
        weights = self.class_weights
        if isinstance(weights, list) and (min(weights, default=0) < 0 or not any(weights)):
            raise UserError(f"task.class_weights={show(weights)} must be numbers from 0 on, and one above it")

    @property
    def weighs_by_train(self) -> bool:
        return self.class_weights == "balanced"


@dataclass
class ClassSettings(NamedClassSettings):
    """Settings of tasks with one class per example."""

    label_field: str = doc("column that holds the class, a number or a name", "label")

    @property
    def stratified_by(self) -> str:
        return self.label_field


@dataclass(frozen=True)
class ClassLabels:
    """The classes of a task, as found in the data of all splits.

    column: that holds the class or classes of an example. classes: of the data. names: of the model's outputs, of which
    several of the data's may be one. new_head: why a checkpoint's head is not kept; "": it is. counted: key of the
    counts of classes in the rows' facts. type: of a row's label, as schema_of takes it. problem_type: in the
    model's config. classes_in: (value, place) -> (place, class) of each class in a column's value.
    """

    column: str
    classes: Classes
    names: list[str]
    new_head: str = ""
    counted: str = "classes"
    type: str = "int32"
    problem_type: str | None = "single_label_classification"
    classes_in: Callable[[Any, str], Iterable[tuple[str, Any]]] = the_value

    def of(self, row: dict, place: str, account: Account | None = None) -> Any:
        """The number of the class of an example; counts how it is written. Raises UserError."""
        return self.number(row[self.column], place, account)

    def answer(self, row: dict, place: str) -> Any:
        """What a language model is asked for: the label itself. Raises UserError."""
        return self.of(row, place)

    def number(self, value: Any, place: str, account: Account | None = None) -> int:
        """The number of the model's output for the class that a value means. Raises UserError."""
        return self.outputs[self.classes.names[self.classes.number(value, place, account)]]

    @property
    def outputs(self) -> dict[str, int]:
        """{name: number of the output}."""
        return {name: number for number, name in enumerate(self.names)}

    def identity(self) -> list[str]:
        """What labels depend on besides the examples; if it changes, the examples are encoded anew."""
        return [*self.names, *self.classes.meaning.identity()]

    def facts(self, labels: Any) -> dict[str, Any]:
        """Facts about a batch's labels, whose numbers are added up over all batches."""
        counts = torch.bincount(torch.as_tensor(labels, dtype=torch.long), minlength=len(self.names)).tolist()
        return {self.counted: dict(zip(self.names, counts))}

    def words(self, facts: dict[str, Any]) -> str:
        """The facts in words."""
        return ", ".join(f"{name} {count:,}" for name, count in facts[self.counted].items())

    def shown(self, label: Any) -> str:
        """A row's label in words."""
        return f"class {self.names[int(label)]}"


def find_classes(
    reads: Reads,
    sources: dict,
    *,
    learned: Callable[[list[str]], list[str]] = list,
    kind: Callable[..., ClassLabels] = ClassLabels,
) -> ClassLabels:
    """The classes of the examples of all splits, numbered as the outputs of the recipe's model.

    They are the recipe's task.label_names, or else those in the examples.

    learned: the model's names for the classes in the data, without repeats: it may learn several as one. kind: makes
    the labels.

    Raises UserError for labels that are no classes, for fewer than two classes, for a model that is measured and has
    other classes, for a checkpoint's classes in another order than the recipe's, for weights of another number, or for
    a metric of two classes with more.
    """
    objective, facts, recipe = reads.objective, reads.facts, reads.recipe
    (column, field), classes_in = label_column(reads.settings), reads.classes_in
    given, weights, new_head = reads.settings.label_names, reads.settings.class_weights, ""
    origin = "of task.label_names" if facts.measured is None else "of the model"
    meaning = Meaning(reads.settings.label_map or {}, reads.settings.merge_labels)
    if facts.measured is not None:
        stored = sources[facts.split].source.class_names(column)
        stored = stored and list(dict.fromkeys(map(meaning, stored)))
        given = _names_of_model(reads, facts.measured, stored, learned)

    def named(names: list[str] | None, origin: str = "of the checkpoint") -> Classes:
        return Classes(field, column, sources, reads.cache, names, classes_in, origin, meaning)

    classes = named(given, origin)
    names = learned(classes.names)
    if recipe.model.name_or_path is not None:
        known, numbered = names_of_outputs(objective.facts.config), classes.numbered
        if sorted(names) != sorted(known) and not numbered:
            of_checkpoint = named(known)
            values = range(len(classes.names)) if are_unnamed(classes.names) else classes.names
            with suppress(UserError):  # of a class that the checkpoint does not have
                numbers = {of_checkpoint.number(value, "") for value in values}
                if len(numbers) == len(values) == len(known):
                    classes, names = of_checkpoint, learned(known)
        if sorted(names) == sorted(known):
            if names != known and (given is not None or isinstance(weights, list)):
                raise UserError(
                    f"model.name_or_path={recipe.model.name_or_path} has the classes {', '.join(known)}, in this "
                    f"order; write task.label_names={show(known)}, and count them alike in data and weights"
                )
            names = known
        elif not (numbered and are_unnamed(known) and len(names) == len(known)):
            new_head = f"{recipe.model.name_or_path} tells {listed(known)} apart, not {listed(names)}"
    if isinstance(weights, list) and len(weights) != len(names):
        raise UserError(f"task.class_weights={show(weights)} must be {len(names)} numbers, for {', '.join(names[:8])}")
    objective.check_metrics(names)
    return kind(column, classes, names, new_head, classes_in=classes_in)


def _names_of_model(reads: Reads, config: Any, stored: list[str] | None, learned: Callable) -> list[str]:
    """The names of the data's classes where a model is measured, in the order of its outputs. stored: in the data.

    Raises UserError where the recipe, or else the data, names other classes or another order.
    """
    recipe, known, given = reads.recipe, names_of_outputs(config), reads.settings.label_names
    names = given or stored
    outputs = known if names is None else learned(list(names))
    if given is None and sorted(outputs) == sorted(known) and outputs != known:
        names = None  # the same classes, which the data name, too
    if names is None or outputs == known or (are_unnamed(known) and len(outputs) == len(known)):
        return known if names is None else list(names)
    raise UserError(
        f"MODEL={recipe.model.name_or_path} tells {', '.join(known)} apart, but the classes of {recipe.name} "
        f"are {', '.join(outputs)}; if they mean the same, in this order, add "
        f"task.label_names='{json.dumps(known, ensure_ascii=False)}'"
    )


def names_of_outputs(config: Any) -> list[str]:
    """The names of the classes in a config, in the order of the model's outputs."""
    return [str(name) for _, name in sorted(config.id2label.items())]


def try_classes(reads: Reads, examples: list) -> None:
    """Raise UserError for examples (place, row) whose labels cannot be classes, before names are known."""
    column, field = label_column(reads.settings)
    for place, row in examples:
        for where, value in reads.classes_in(row[column], place):
            check_class(value, field, where)


def with_class_notes(reads: Reads, data: Data, rows: dict) -> dict:
    """The `completed` of a Reads: the rows of all splits, with notes on missing and rare classes."""
    section = reads.recipe.data
    has_own = {"validation": section.validation_files or section.validation_split}
    has_own["test"] = section.test_fraction is None
    for split, one in rows.items():
        counts = one.facts.get("classes") or one.facts.get("labels") or {}
        one.account.note(*class_notes(split, counts, not section.by_class and not has_own.get(split)))
    return rows


class LearnsClasses(Learns):
    """The classes' names in the model's config, by which `pipeline()` answers, and their weights in the loss."""

    def config_fields(self) -> dict[str, Any]:
        names, problem = self.data.labels.names, self.data.labels.problem_type
        return {
            **decoder_start(self.objective, self.tokenizer),
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
        } | ({} if problem is None else {"problem_type": problem})

    def _weights(self) -> list[float]:
        """The weight of each class: as set, or balanced. Raises UserError for a class without a training example."""
        labels, weights = self.data.labels, self.settings.class_weights
        if weights != "balanced":
            return weights
        facts = self.data.rows["train"].facts
        counts = [facts[labels.counted].get(name, 0) for name in labels.names]
        if 0 in counts:
            raise UserError(
                f"task.class_weights=balanced: no training example is of the class "
                f"{labels.names[counts.index(0)]!r}; give the weights as a list"
            )
        return self._balanced(counts, facts["examples"])

    def _balanced(self, counts: Sequence[int], examples: int) -> list[float]:
        """n / (C n_c) for each of C classes, of which n_c (`counts`, none 0) of n training examples are.

        King and Zeng 2001, section 4.2; scikit-learn's "balanced".
        """
        return [sum(counts) / (len(counts) * count) for count in counts]

    def loss(self) -> Any:
        return None if self.settings.class_weights is None else WeightedClasses(self._weights())


def decoder_start(objective: Objective, tokenizer: Any) -> dict[str, Any]:
    """In a fresh encoder-decoder the decoder's input begins with padding, as in pretraining."""
    family = objective.facts.family
    fresh = tokenizer is not None and family is not None and family.has_decoder
    return {"decoder_start_token_id": tokenizer.pad_token_id} if fresh else {}


@dataclass(frozen=True)
class Judged:
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


class ClassScores(Scores):
    """Metrics of rows with one class; where classes have no names, as choices, there is no report on them.

    unit: what the class report counts, where that is not rows.
    """

    predicts = "row"
    unit: str = ""

    def predictions(self, logits, labels):
        """Logits (B, C), labels (B,) -> float32 (B, 3): predicted class, right class, the predicted one's probability.

        (B, 2 + C), with the probabilities of all classes, where a metric needs them or `keeps_scores` is set.
        """
        shares = logits.float().softmax(-1)
        needs_all = any(METRICS[name].compares == "probabilities" for name in self.objective.metrics)
        if not self.keeps_scores and not needs_all:
            shares = shares.amax(-1, keepdim=True)
        return torch.cat([torch.stack([logits.argmax(-1), labels], dim=-1).float(), shares], dim=-1)

    def scored(self, predictions) -> Scored:
        """Metrics of the predictions of all rows, an array of shape (rows, 3) or (rows, 2 + C)."""
        predicted, true = predictions[:, :2].astype("int32").T
        judged = Judged(predicted, true, predictions[:, 2:].max(-1))
        probabilities = predictions[:, 2:] if predictions.shape[1] > 3 else None
        return self._compare(predicted.tolist(), true.tolist(), probabilities, judged=judged)

    def named(self, value: int) -> str | int:
        return value if self.data.labels is None else self.data.labels.names[value]

    # ---- the report on single classes after a pass over some rows

    def class_report(
        self, scored: Scored | None, rows: "Rows", numbers: Sequence[int], source: "Examples"
    ) -> dict[str, Any] | None:
        """{"unit", "classes", "matrix", "confused", "calibration", "mistakes"}, as metrics/class_report.py makes them.

        unit: what is counted. mistakes: the most confident wrong answers, each {"row", "place", "confidence", "given",
        "true"} and "text" or "image" (a PNG in base64). row: the row's number in the split. place: where the example
        stands in the data, such as file and line.
        """
        from ..metrics.class_report import calibration, surest_mistakes

        if scored is None or self.data.labels is None:
            return None
        judged, right = scored.judged, scored.judged.given == scored.judged.true
        chosen = surest_mistakes(judged.confidence, right)
        if judged.row(len(right) - 1) + 1 < len(numbers):  # rows without a label have no answer
            numbers = [number for number in numbers if bool((rows[number]["labels"] >= 0).any())]
        of_rows = [numbers[judged.row(place)] for place in chosen]
        examples = zip(range(max(of_rows, default=-1) + 1), self.data.reads.with_rows(self.data, source))
        places = {number: place for number, (place, _) in examples if number in of_rows}
        return {
            "unit": self.unit or f"{self.objective.words.row}s",
            **self._judged_classes(judged),
            "calibration": calibration(judged.confidence, right),
            "mistakes": [
                {"row": number, "place": places[number], "confidence": float(judged.confidence[place])}
                | dict(zip(("given", "true"), self._said(judged, place, rows[number])))
                | self._as_read(judged, place, rows[number])
                for place, number in zip(chosen, of_rows)
            ],
        }

    def _judged_classes(self, judged: Judged) -> dict[str, Any]:
        """ "classes", "matrix" and "confused" of the report."""
        from ..metrics.class_report import confusion, per_class

        names = self.data.labels.names
        return {"classes": per_class(names, judged.given, judged.true)} | confusion(names, judged.given, judged.true)

    def _said(self, judged: Judged, place: int, row: dict) -> tuple[str, str]:
        """(the model's answer, the right answer) in words. place: index into `judged`. row: the answer's row."""
        return self.data.labels.names[judged.given[place]], self.data.labels.names[judged.true[place]]

    def _as_read(self, judged: Judged, place: int, row: dict) -> dict[str, str]:
        """The "text" or "image" of an answer's row, as the model reads it."""
        if "pixel_values" in row:
            return {"image": as_png(row["pixel_values"], MOST_PIXELS)}
        return {"text": " | ".join(texts_of_row(row["input_ids"].tolist(), self.tokenizer))}


def texts_of_row(ids: Sequence[int], tokenizer) -> list[str]:
    """The texts of a row as the model reads them: what lies between its special tokens."""
    special = set(tokenizer.all_special_ids)
    runs = [list(run) for is_special, run in groupby(ids, special.__contains__) if not is_special]
    return [text for run in runs if (text := tokenizer.decode(run).strip())]
