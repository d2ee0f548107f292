"""Reading of labelled examples with text: one row per example, of different lengths, padded in batches."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..data.account import Account
from ..data.cells import filled_text_of, text_of
from ..positions import UNLIMITED
from ..storage.cache import sha
from .data import Data
from .reads import AS_READ, Reads, columns_of, text_columns_of
from .tokens import padding_collator, train_or_load

if TYPE_CHECKING:
    from ..data.documents import Corpus
    from ..data.example_store import EncodedExamples
    from ..data.examples import Example, Examples


def open_columns(reads: Any) -> "dict[str, Examples]":
    """The `open` of examples: of their `columns`."""
    from ..data.opening import open_examples

    return open_examples(reads.recipe.data, reads.columns(), classes=reads.settings.stratified_by)


def try_rows(reads: Any, examples: "list[Example]", data: Data | None) -> None:
    """The `try_examples` of texts: an example may have no text, no class or, once there are data, no row."""
    from .class_labels import try_classes

    for _ in reads.texts(examples).documents():
        pass
    if data is None and reads.classes_in is not None:
        try_classes(reads, examples)
    if data is not None:
        for _ in reads._batches(data, examples, Account()):
            pass


class ReadsExamples(Reads):
    """A subclass encodes examples to rows (`rows`, `_batches`)."""

    legend = AS_READ

    def columns(self) -> dict[str, str]:
        """Recipe field -> column that is read; the last one holds the label or answer."""
        return columns_of(self.settings)

    def text_columns(self) -> dict[str, str]:
        """{setting: the column that it names} for each text of an example."""
        return text_columns_of(self.settings)

    def asked_columns(self, there=None) -> dict[str, str]:
        return self.text_columns()

    def text_in(self, row: dict, column: str, field: str, place: str) -> str:
        """The text in one of the `text_columns` of an example; raises UserError if there is none."""
        return filled_text_of(row, column, field, place)

    def texts_in(self, row: dict, place: str) -> list[str]:
        """The texts of an example, on which a tokenizer is trained. Raises UserError."""
        return [self.text_in(row, column, field, place) for field, column in self.text_columns().items()]

    open = open_columns

    def texts(self, source: "Examples") -> "Corpus":
        from ..data.examples import ExampleTexts

        key = {"texts": self.text_columns()} | ({"names": True} if getattr(self.settings, "text_names", False) else {})
        return ExampleTexts(source, lambda place, row: self.texts_in(row, place), key)

    def prepare(self, sources: "dict[str, Examples]", tokenizer: Any = None) -> Data:
        tokenizer = train_or_load(self.objective, self.texts(sources["train"]), tokenizer)
        if tokenizer.model_max_length > UNLIMITED:
            tokenizer.model_max_length = self.settings.max_length  # where pipelines cut a text
        return Data(self.objective, self, tokenizer, self._labels(sources), sources=sources)

    def _labels(self, sources: "dict[str, Examples]") -> Any:
        """What is to be known of the labels of all splits before one is encoded (Data.labels). Raises UserError."""
        return None

    try_examples = try_rows

    @abstractmethod
    def _batches(self, data: Data, examples: "Examples", account: Account) -> Iterator[dict[str, list]]:
        """Rows of the examples, by column, batch after batch; counts what becomes of labels and texts.

        A batch also has `facts`, a dict whose numbers are added up over all batches. Raises UserError for an example
        that makes no row.
        """

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


def stored(
    reads: Any,
    data: Data,
    source: "Examples",
    columns: dict[str, str],
    *settings: Any,
    kind: Sequence[str] = (),
    make: Callable | None = None,
) -> "EncodedExamples":
    """The rows that `reads._batches` makes of the examples, cached column-wise, with the `facts` of all batches.

    columns: as schema_of takes them. settings: JSON of what the rows depend on beside examples and tokenizer; kind:
    names before them. make: used instead of `_batches`.
    """
    from ..data.example_store import encode_examples, schema_of
    from ..data.examples import examples_fingerprint
    from ..tokenizers.load import tokenizer_fingerprint

    # The name of the rows in the cache, and part of a run's identity.
    key = sha([*kind, examples_fingerprint(source), tokenizer_fingerprint(data.tokenizer), *settings])
    make = make or partial(reads._batches, data)
    return encode_examples(reads.cache, key, source, schema_of(columns), make, data.tokenizer)
