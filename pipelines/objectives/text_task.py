"""Tasks over labelled examples with text: one row per example, of different lengths, padded in batches."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..data.cells import filled_text_of, text_of
from ..errors import UserError
from ..storage.cache import sha
from .base import check_examples
from .old import Objective
from .text import UNLIMITED, Tokenized

if TYPE_CHECKING:
    from ..data.documents import Corpus
    from ..data.example_store import EncodedExamples
    from ..data.examples import Example, Examples


class TextTask(Tokenized, Objective):
    """A subclass defines which columns it reads (`columns`), and encodes examples to rows (`rows`)."""

    section = "task"
    use = "anyformer predict {folder} FILE"
    labels_of_tokens: ClassVar[bool] = False
    kind_of_rows: list[str] = []  # further parts of the cache key of stored rows
    special_tokens = "cls_sep"
    row_noun = "example"
    legend_words = (
        "what the model reads, [predicted]special tokens[/] included, [unpredicted]underlined[/] an answer within it"
    )
    loss_unit = "nats per example"

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Recipe field -> column that is read."""

    def text_columns(self) -> dict[str, str]:
        """Those of `columns` that hold text, on which a tokenizer is trained."""
        return self.columns()

    def text_in(self, row: dict, column: str, field: str, place: str) -> str:
        """The text in one of the `text_columns` of an example; raises UserError if there is none."""
        return filled_text_of(row, column, field, place)

    @property
    def answer_column(self) -> str:
        return [*self.columns().values()][-1]

    def questions(self, source: "Examples") -> Iterator[tuple[dict[str, str], Any]]:
        columns = self.asked_columns(self.text_columns().values())
        for place, row in source:
            texts = {column: text_of(row, column, field, place) for field, column in columns.items()}
            yield texts, self.true_answer(row, place)

    def true_answer(self, row: dict, place: str) -> Any:
        """The answer of an example, as a language model is asked for it; by default a text. Raises UserError."""
        field, column = [*self.columns().items()][-1]
        return self.text_in(row, column, field, place)

    def check(self) -> None:
        check_examples(self)
        super().check()

    def open(self) -> "dict[str, Examples]":
        from ..data.example_splits import open_examples

        return open_examples(self.recipe.data, self.columns(), classes=self.stratified_by)

    def corpus(self, source: "Examples") -> "Corpus":
        from ..data.examples import ExampleTexts

        columns = self.text_columns()

        def texts(place: str, row: dict) -> list[str]:
            return [self.text_in(row, column, field, place) for field, column in columns.items()]

        return ExampleTexts(source, texts, {"texts": columns})

    def prepare(self, splits: "dict[str, Examples]", cache: Path, progress: bool) -> None:
        self.processor = self.train_or_load_tokenizer(self.corpus(splits["train"]), cache, progress)
        if self.tokenizer.model_max_length > UNLIMITED:
            self.tokenizer.model_max_length = self.settings.max_length  # where pipelines cut a text

    def try_examples(self, examples: "list[Example]", prepared: bool) -> None:
        for _ in self.corpus(examples).documents():
            pass
        if prepared:
            for _ in self._batches(examples):
                pass
        super().try_examples(examples, prepared)

    def lengths(self) -> dict[str, int | None]:
        return {"max_length": self.settings.max_length}

    def stored(
        self, source: "Examples", cache: Path, columns: dict[str, str], *settings: Any, make: Callable | None = None
    ) -> "EncodedExamples":
        """The rows that `_batches` makes of the examples, cached column-wise, with the `_facts` of each batch.

        columns: as schema_of takes them. settings: JSON of what the rows depend on beside examples and tokenizer. make:
        used instead of `_batches`.
        """
        from ..data.example_store import encode_examples, schema_of
        from ..data.examples import examples_fingerprint

        # The name of the rows in the cache, and part of a run's identity.
        key = sha([*self.kind_of_rows, examples_fingerprint(source), self.processor_fingerprint(), *settings])
        make = make or self._batches
        notes = self.notes_of_rows
        return encode_examples(cache, key, source, schema_of(columns), make, self._facts, self.tokenizer, notes)

    def collator(self, packed: bool) -> Callable[[list[dict]], dict]:
        from ..data.length_batching import PaddingCollator

        return PaddingCollator(self.pad_token_id, self.tokenizer.padding_side == "left", self.labels_of_tokens)

    def need_offsets(self) -> None:
        """Raise UserError for a tokenizer that does not say where in the text its tokens stand."""
        if not self.tokenizer.is_fast:
            raise UserError(
                f"{self.setting} needs to know where tokens stand in the text, which {type(self.tokenizer).__name__} "
                f"does not say; take a tokenizer with a tokenizer.json"
            )
