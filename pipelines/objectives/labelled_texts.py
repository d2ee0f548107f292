"""Base of the tasks that predict classes or a number for a text or a pair of texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import text_tokenizer
from ..words import at_limit, counted
from .answering import of_scores, piped
from .base import TOKENS
from .finished_model import FinishedModel
from .showing import sequence_text
from .text_task import TextTask


@dataclass
class LabelledTextSettings(ObjectiveSettings):
    text_field: str = doc("column that holds the text", "text")
    text_pair_field: str | None = doc("column of a second text, judged together with the first")
    max_length: int = doc("tokens per text, special ones included; longer texts are cut", 256, **TOKENS)


class LabelledTexts(TextTask):
    """Base class; a subclass defines what a label is, by an attribute and four methods.

    label_type: its type on disk. label_of(value, place): the label in a column's value; raises UserError for no label.
    label_identity(): what labels depend on besides the examples; if it changes, the examples are encoded anew.
    label_facts(labels): facts about a batch's labels, a mapping whose numbers are added up over all batches.
    label_words(facts): these facts in words.
    """

    label_type: ClassVar[str]
    auto_class = "AutoModelForSequenceClassification"
    hub_task = "text-classification"
    # The head reads one token's vector: the last token's in a decoder, the end-of-text token's in an encoder-decoder.
    framing_of_head = {"AutoModelForCausalLM": "none", "AutoModelForSeq2SeqLM": "eos"}

    def true_answer(self, row: dict, place: str) -> Any:
        return self.label_of(self.label_in(row), place)

    answers_by = auto_class

    def asked(self, row: dict, place: str) -> dict[str, str]:
        texts = [self.text_in(row, column, field, place) for field, column in self.text_columns().items()]
        return dict(zip(("text", "text_pair"), texts))

    def predict(self, finished: FinishedModel, asked: list[dict[str, str]]) -> list[dict[str, Any]]:
        results = piped(self, finished, "TextClassification", asked, top_k=None, truncation=True)
        return list(map(self.answer_of, results))

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer from the pipeline's result for a row: {"label", "score"} of each of the model's outputs."""
        return of_scores(found)

    def config_fields(self) -> dict[str, Any]:
        """In a fresh encoder-decoder the decoder's input begins with padding, as in pretraining."""
        fresh = self.family is not None and self.family.has_decoder
        return {"decoder_start_token_id": self.tokenizer.pad_token_id} if fresh else {}

    def columns(self) -> dict[str, str]:
        return {**self.text_columns(), "label_field": self.settings.label_field}

    def text_columns(self) -> dict[str, str]:
        section = self.settings
        pair = {"text_pair_field": section.text_pair_field} if section.text_pair_field else {}
        return {"text_field": section.text_field, **pair}

    def rows(self, source, split: str, cache: Path, progress: bool = False) -> Rows:
        """Rows with the columns that `encoded` returns, and labels."""
        columns = self.encoded_columns() | {"labels": self.label_type}
        return self.stored(source, cache, columns, [self.settings.max_length, self.label_identity(), list(columns)])

    def encoded_columns(self) -> dict[str, str]:
        """The columns that `encoded` returns, as schema_of takes them; token_type_ids are for pairs of texts."""
        pair = self.settings.text_pair_field is not None and "token_type_ids" in self.tokenizer.model_input_names
        return {"input_ids": "int32[]"} | ({"token_type_ids": "int8[]"} if pair else {})

    def encoded(self, tokenizer, texts: list[list[str]]) -> dict[str, list]:
        """{column: its value in each row} for a batch of examples. texts: for each text column, one per example."""
        return tokenizer(*texts, truncation=True, max_length=self.settings.max_length, padding=False)

    def _batches(self, examples) -> Iterator[dict[str, list]]:
        columns = self.text_columns()
        tokenizer = text_tokenizer(self.tokenizer)
        for batch in in_batches(examples):
            texts = [
                [self.text_in(row, column, field, place) for place, row in batch] for field, column in columns.items()
            ]
            encoded = self.encoded(tokenizer, texts)
            for (place, _), lengths in zip(batch, self.lengths_of(encoded)):
                if not all(lengths):
                    raise UserError(f"task.text_field={self.settings.text_field!r}: {place} holds no token")
            yield {**encoded, "labels": [self.label_of(self.label_in(row), place) for place, row in batch]}

    def label_in(self, row: dict) -> Any:
        """The value in an example's label column, which `label_of` takes."""
        return row[self.settings.label_field]

    def lengths_of(self, batch: dict[str, list]) -> list[tuple[int, ...]]:
        """For each encoded example, the numbers of tokens that max_length bounds."""
        return [(len(ids),) for ids in batch["input_ids"]]

    def _facts(self, batch: dict[str, list]) -> dict:
        return {
            "examples": len(batch["input_ids"]),
            "tokens": sum(len(ids) for ids in batch["input_ids"]),
            "at_max_length": sum(max(lengths) >= self.settings.max_length for lengths in self.lengths_of(batch)),
            **self.label_facts(batch["labels"]),
        }

    def describe(self, rows) -> str:
        facts = rows.facts
        return (
            f"{counted(facts['examples'], 'example')} of {rows.name}, "
            f"{facts['tokens'] / facts['examples']:.0f} tokens each, "
            f"{at_limit(facts['at_max_length'], facts['examples'], f'max_length={self.settings.max_length}')}; "
            f"{self.label_words(facts)}"
        )

    @classmethod
    def example_of_use(cls, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        if settings.get("text_pair_field") is None:
            return super().example_of_use(settings)
        return {"text": "your text", "text_pair": "your second text"}, {}

    def label_shown(self, row: dict) -> str:
        """The label of a row in words."""
        return f"label {float(row['labels']):.4g}"

    def show(self, console, rows, number: int, row: dict) -> None:
        console.rule(f"row {number}: {len(row['input_ids'])} tokens, {self.label_shown(row)}", align="left")
        console.print(sequence_text(row["input_ids"].tolist(), self.tokenizer))
