"""One class for a text or a pair of texts."""

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import torch

from ..cache import cached_folder
from ..documents import sha
from ..errors import UserError, did_you_mean
from ..framing import NEEDED
from ..metrics import check_metrics, compute_metrics
from ..schema import TaskSection
from ..tokenization import tokenizer_fingerprint
from .batching import PaddingCollator
from .encoded import EncodedExamples, encode_examples, in_batches
from .examples import Examples, examples_fingerprint, text_of


def columns_of(section: TaskSection) -> dict[str, str]:
    """Recipe field -> column the task reads."""
    pair = {"text_pair_field": section.text_pair_field} if section.text_pair_field else {}
    return {"text_field": section.text_field, **pair, "label_field": section.label_field}


def text_columns_of(section: TaskSection) -> dict[str, str]:
    """Those of `columns_of` that hold text."""
    return {field: column for field, column in columns_of(section).items() if field != "label_field"}


class SequenceClassification:
    """Texts and their classes; the class's name is the model's answer.

    Args:
        train: training examples, from which the classes are taken where the recipe does not name them.
        metrics: names of what is measured beside the loss.

    Raises:
        UserError: labels that are no classes, fewer than two classes, or a metric of two classes for more of them.
    """

    auto_class = "AutoModelForSequenceClassification"
    predicts_next = False
    framing = NEEDED["sequence_classification"]

    def __init__(self, section: TaskSection, tokenizer, train: Examples, cache: Path, metrics: list[str]):
        self.section, self.tokenizer, self.metrics = section, tokenizer, metrics
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

    def collator(self, packed: bool) -> PaddingCollator:
        return PaddingCollator(self.tokenizer.pad_token_id, self.tokenizer.padding_side == "left")

    def rows(self, examples: Examples, cache: Path) -> EncodedExamples:
        """The examples as input_ids, labels (the class's number) and, for a pair of texts, token_type_ids."""
        pair = self.section.text_pair_field is not None and "token_type_ids" in self.tokenizer.model_input_names
        ids, byte = pyarrow.list_(pyarrow.int32()), pyarrow.list_(pyarrow.int8())
        schema = pyarrow.schema(
            [("input_ids", ids), *([("token_type_ids", byte)] if pair else []), ("labels", pyarrow.int32())]
        )
        key = sha(
            [
                examples_fingerprint(examples),
                tokenizer_fingerprint(self.tokenizer),
                [self.section.max_length, self.label_names, schema.names],
            ]
        )
        return encode_examples(cache, key, examples.name, schema, lambda: self._batches(examples), self._facts)

    def _batches(self, examples: Examples) -> Iterator[dict[str, list]]:
        columns = text_columns_of(self.section)
        tokenizer = copy.deepcopy(self.tokenizer)  # calling it leaves truncation switched on, which would be saved
        for batch in in_batches(examples):
            texts = [[text_of(row, column, field, place) for place, row in batch] for field, column in columns.items()]
            encoded = tokenizer(*texts, truncation=True, max_length=self.section.max_length, padding=False)
            for (place, _), ids in zip(batch, encoded["input_ids"]):
                if not ids:
                    raise UserError(f"task.text_field={self.section.text_field!r}: {place} holds no token")
            labels = [self.class_of(row[self.section.label_field], place) for place, row in batch]
            yield {**encoded, "labels": labels}

    def _facts(self, batch: dict[str, list]) -> dict:
        lengths = [len(ids) for ids in batch["input_ids"]]
        counts = Counter(batch["labels"])
        return {
            "examples": len(lengths),
            "tokens": sum(lengths),
            "at_max_length": sum(length >= self.section.max_length for length in lengths),
            "classes": {name: counts[number] for number, name in enumerate(self.label_names)},
        }

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

    def outcome(self, logits, labels):
        """(B, C) and (B,) -> (B, 2): the class a row is given, and the one it has."""
        return torch.stack([logits.argmax(-1), labels], dim=-1)

    def measure(self, outcomes) -> dict[str, float]:
        """Metrics of all rows' outcomes, an array of shape (rows, 2)."""
        predictions, references = outcomes.T.tolist()
        return compute_metrics(self.metrics, predictions, references)[0]

    def describe(self, rows: EncodedExamples) -> str:
        """One line for people."""
        facts = rows.facts
        classes = ", ".join(f"{name} {count:,}" for name, count in facts["classes"].items())
        return (
            f"{facts['examples']:,} examples of {rows.name}, {facts['tokens'] / facts['examples']:.0f} tokens each, "
            f"{facts['at_max_length'] / facts['examples']:.1%} fill max_length={self.section.max_length}; {classes}"
        )


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
