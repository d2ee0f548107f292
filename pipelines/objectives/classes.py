"""Tasks whose answer is one of a few classes: names and numbers of the classes, and what is measured."""

import json
from pathlib import Path

import torch

from ..data.documents import sha
from ..data.examples import Examples, examples_fingerprint
from ..errors import UserError, did_you_mean
from ..metrics import check_metrics, compute_metrics
from ..recipes.schema import TaskSection
from ..storage.cache import cached_folder


class ClassTask:
    """What all tasks of one class per example share; the class's name is the model's answer.

    Args:
        train: training examples, from which the classes are taken where the recipe does not name them.
        metrics: names of what is measured beside the loss.

    Raises:
        UserError: labels that are no classes, fewer than two classes, or a metric of two classes for more of them.
    """

    predicts_next = False

    def __init__(self, section: TaskSection, train: Examples, cache: Path, metrics: list[str]):
        self.section, self.metrics = section, metrics
        self.label_names = section.label_names or names_in_data(section, train, cache)
        self._numbers = {name: number for number, name in enumerate(self.label_names)}
        check_metrics(metrics, "classes", "evaluation.metrics", len(self.label_names))

    def config_fields(self) -> dict:
        """Fields of the model's config that belong to the task; the names are what `pipeline()` answers with."""
        return {
            "num_labels": len(self.label_names),
            "id2label": dict(enumerate(self.label_names)),
            "label2id": dict(self._numbers),
            "problem_type": "single_label_classification",
        }

    def prepare_model(self, model) -> None:
        """Nothing: the config says it all."""

    def class_of(self, value, place: str) -> int:
        """The number of a label: numbers are class numbers, strings are looked up. Raises UserError."""
        field = f"task.label_field={self.section.label_field!r}"
        if isinstance(value, str):
            if value not in self._numbers:
                raise UserError(f"{field}: {place} is of the unknown class {value!r}{near(value, self.label_names)}")
            return self._numbers[value]
        if not isinstance(value, int):
            raise UserError(f"{field}: {place} holds {value!r}, which is no class (a whole number or a name)")
        if not 0 <= value < len(self.label_names):
            raise UserError(
                f"{field}: {place} holds {value}, but the classes are numbered 0 to {len(self.label_names) - 1} "
                f"({', '.join(self.label_names[:8])})"
            )
        return int(value)

    def predictions(self, logits, labels):
        """(B, C) and (B,) -> (B, 2): the class a row is given, and the one it has."""
        return torch.stack([logits.argmax(-1), labels], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of all rows' predictions, an array of shape (rows, 2)."""
        predictions, references = predictions.T.tolist()
        return compute_metrics(self.metrics, predictions, references)[0]

    def counts(self, labels) -> dict[str, int]:
        """How many of some class numbers are of which class, by name."""
        found = torch.bincount(torch.as_tensor(labels), minlength=len(self.label_names)).tolist()
        return dict(zip(self.label_names, found))


def near(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) or f"; there are {len(known)} classes"


def names_in_data(section: TaskSection, train: Examples, cache: Path) -> list[str]:
    """The classes' names: those the data carries, else its strings in alphabetical order, else LABEL_0, LABEL_1, ..."""
    named = train.source.class_names(section.label_field)
    if named is not None:
        return list(named)
    folder = cached_folder(
        cache,
        "classes",
        sha([examples_fingerprint(train), section.label_field]),
        lambda work: (work / "names.json").write_text(json.dumps(_scan(section, train))),
        lambda path: (path / "names.json").is_file(),
    )
    return json.loads((folder / "names.json").read_text())


def _scan(section: TaskSection, train: Examples) -> list[str]:
    field = f"task.label_field={section.label_field!r}"
    names, highest, kind = set(), 0, None
    for place, row in train:
        value = row[section.label_field]
        if not isinstance(value, (str, int)):
            raise UserError(f"{field}: {place} holds {value!r}, which is no class (a whole number or a name)")
        if isinstance(value, int) and value < 0:
            raise UserError(f"{field}: {place} holds {value}; classes are numbered from 0")
        if kind not in (None, isinstance(value, str)):
            raise UserError(f"{field}: {place} holds {value!r}, but others before it are of another type")
        kind = isinstance(value, str)
        if kind:
            names.add(value)
        else:
            highest = max(highest, int(value))
            names.add(int(value))
    if len(names) < 2:
        raise UserError(f"{field}: every training example has the class {names.pop()!r}; it takes two to tell apart")
    return sorted(names) if kind else [f"LABEL_{number}" for number in range(highest + 1)]
