"""One class for a text or a pair of texts."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pyarrow

from ..data.documents import sha
from ..data.example_store import EncodedExamples, encode_examples, in_batches
from ..data.examples import Examples, examples_fingerprint, text_of
from ..data.length_batching import PaddingCollator
from ..errors import UserError
from ..recipes.schema import TaskSection
from ..tokenizers.load import tokenizer_fingerprint
from ..tokenizers.special_tokens import NEEDED
from .classes import ClassTask


def columns_of(section: TaskSection) -> dict[str, str]:
    """Recipe field -> column the task reads."""
    pair = {"text_pair_field": section.text_pair_field} if section.text_pair_field else {}
    return {"text_field": section.text_field, **pair, "label_field": section.label_field}


def text_columns_of(section: TaskSection) -> dict[str, str]:
    """Those of `columns_of` that hold text."""
    return {field: column for field, column in columns_of(section).items() if field != "label_field"}


class SequenceClassification(ClassTask):
    """Texts and their classes; arguments and errors as ClassTask's."""

    auto_class = "AutoModelForSequenceClassification"
    framing = NEEDED["sequence_classification"]

    def __init__(self, section: TaskSection, tokenizer, train: Examples, cache: Path, metrics: list[str]):
        super().__init__(section, train, cache, metrics)
        self.tokenizer = tokenizer

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
        return {
            "examples": len(lengths),
            "tokens": sum(lengths),
            "at_max_length": sum(length >= self.section.max_length for length in lengths),
            "classes": self.counts(batch["labels"]),
        }

    def describe(self, rows: EncodedExamples) -> str:
        """One line for people."""
        facts = rows.facts
        classes = ", ".join(f"{name} {count:,}" for name, count in facts["classes"].items())
        return (
            f"{facts['examples']:,} examples of {rows.name}, {facts['tokens'] / facts['examples']:.0f} tokens each, "
            f"{facts['at_max_length'] / facts['examples']:.1%} fill max_length={self.section.max_length}; {classes}"
        )
