"""Reading of labelled examples with text: one row per example, of different lengths, padded in batches."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.account import Account
from ..data.cells import filled_text_of, text_of
from ..positions import UNLIMITED
from ..storage.cache import sha
from .data import Data
from .reads import AS_READ, Reads
from .tokens import padding_collator, train_or_load

if TYPE_CHECKING:
    from ..data.documents import Corpus
    from ..data.example_store import EncodedExamples
    from ..data.examples import Example, Examples


class ReadsExamples(Reads):
    """A subclass defines which columns it reads (`columns`), and encodes examples to rows (`rows`, `_batches`)."""

    legend = AS_READ

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Recipe field -> column that is read; the last one holds the label or answer."""

    def text_columns(self) -> dict[str, str]:
        """{setting: the column that it names} for each text of an example."""
        return self.columns()

    def asked_columns(self, there=None) -> dict[str, str]:
        return self.text_columns()

    def text_in(self, row: dict, column: str, field: str, place: str) -> str:
        """The text in one of the `text_columns` of an example; raises UserError if there is none."""
        return filled_text_of(row, column, field, place)

    def open(self) -> "dict[str, Examples]":
        from ..data.example_splits import open_examples

        return open_examples(self.recipe.data, self.columns(), classes=self.objective.settings.stratified_by)

    def texts(self, source: "Examples") -> "Corpus":
        from ..data.examples import ExampleTexts

        columns = self.text_columns()

        def render(place: str, row: dict) -> list[str]:
            return [self.text_in(row, column, field, place) for field, column in columns.items()]

        return ExampleTexts(source, render, {"texts": columns})

    def prepare(self, sources: "dict[str, Examples]", cache: Path, progress: bool, tokenizer: Any = None) -> Data:
        tokenizer = train_or_load(self.objective, self.texts(sources["train"]), cache, progress, tokenizer)
        if tokenizer.model_max_length > UNLIMITED:
            tokenizer.model_max_length = self.settings.max_length  # where pipelines cut a text
        return Data(self.objective, self, tokenizer, self._labels(sources, cache), sources=sources)

    def _labels(self, sources: "dict[str, Examples]", cache: Path) -> Any:
        """What is to be known of the labels of all splits before one is encoded (Data.labels). Raises UserError."""
        return None

    def try_examples(self, examples: "list[Example]", data: Data | None) -> None:
        try_rows(self, examples, data)

    @abstractmethod
    def _batches(self, data: Data, examples: "Examples", account: Account) -> Iterator[dict[str, list]]:
        """Rows of the examples, by column, batch after batch; counts what becomes of labels and texts.

        Raises UserError for an example that makes no row.
        """

    def _facts(self, batch: dict[str, list]) -> dict:
        """Facts about one of `_batches`, whose numbers are added up over all of them."""
        return {"examples": len(batch["labels"]), "tokens": sum(map(len, batch["input_ids"]))}

    def collator(self, data: Data, packed: bool) -> Callable[[list[dict]], dict]:
        return padding_collator(data.tokenizer)

    # ---- questions to a language model

    def questions(self, data: Data, source: "Examples") -> Iterator[tuple[dict[str, str], Any]]:
        columns = self.asked_columns()
        for place, row in source:
            texts = {column: text_of(row, column, field, place) for field, column in columns.items()}
            yield texts, self._true_answer(data, row, place)

    def _true_answer(self, data: Data, row: dict, place: str) -> Any:
        """The answer of an example, as a language model is asked for it; by default a text. Raises UserError."""
        field, column = [*self.columns().items()][-1]
        return self.text_in(row, column, field, place)


def try_rows(reads: Any, examples: "list[Example]", data: Data | None) -> None:
    """Raise UserError for an example with no text or, once there are data, with no row."""
    for _ in reads.texts(examples).documents():
        pass
    if data is not None:
        for _ in reads._batches(data, examples, Account()):
            pass


def stored(
    reads: Any,
    data: Data,
    source: "Examples",
    cache: Path,
    columns: dict[str, str],
    *settings: Any,
    kind: Sequence[str] = (),
    make: Callable | None = None,
    facts: Callable | None = None,
) -> "EncodedExamples":
    """The rows that `reads._batches` makes of the examples, cached column-wise, with the `_facts` of each batch.

    columns: as schema_of takes them. settings: JSON of what the rows depend on beside examples and tokenizer; kind:
    names before them. make, facts: used instead of `_batches` and `_facts`.
    """
    from ..data.example_store import encode_examples, schema_of
    from ..data.examples import examples_fingerprint
    from ..tokenizers.load import tokenizer_fingerprint

    # The name of the rows in the cache, and part of a run's identity.
    key = sha([*kind, examples_fingerprint(source), tokenizer_fingerprint(data.tokenizer), *settings])
    make, facts = make or partial(reads._batches, data), facts or reads._facts
    return encode_examples(cache, key, source, schema_of(columns), make, facts, data.tokenizer)
