"""The part of an objective that reads: from files or the Hub to rows and batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.batch_keys import EPOCH, ROW_IDS
from ..words import counted
from .data import Data, ModelFacts

if TYPE_CHECKING:
    from ..data.documents import Corpus, Share
    from ..data.rows import Rows
    from .base import Objective


# The legend of rows that are printed as the model reads them.
AS_READ = (
    "what the model reads, [predicted]special tokens[/] included, [unpredicted]underlined[/] (without colours in "
    "[[ ]]) an answer within it"
)

# Settings that name columns of labels, which rows that are asked about do not have, or of no content.
LABELS = ("label_field", "tags_field", "sentence_field", "answer_text_field", "answer_start_field")


def columns_of(settings: Any) -> dict[str, str]:
    """{setting: column} of the settings NAME_field that name one; of several columns NAME_field.0 and so on."""
    columns = {}
    for row in fields(settings):
        named = getattr(settings, row.name) if row.name.endswith("_field") else None
        if isinstance(named, list):
            columns |= {f"{row.name}.{number}": column for number, column in enumerate(named)}
        elif named is not None:
            columns[row.name] = named
    return columns


def text_columns_of(settings: Any) -> dict[str, str]:
    """Those of `columns_of` that hold no label."""
    return {name: column for name, column in columns_of(settings).items() if name.partition(".")[0] not in LABELS}


def label_column(settings: Any) -> tuple[str, str]:
    """(the column of a task's labels, the last one; how errors name it: `task.label_field='label'`)."""
    field, column = [*columns_of(settings).items()][-1]
    return column, f"task.{field}={column!r}"


class Reads(ABC):
    """What is read, and how it becomes rows and batches, in two steps: sources, then rows with a tokenizer for them.

    It keeps nothing of what it has read: what later steps need is in the Data that `prepare` returns. In its methods,
    data: that of `prepare`, with or without rows. source: of one split, from `open`.

    legend: what the marks of `show` mean, as showing.legend takes it. classes_in: (value, place) -> (place, class) of
    each class in the value of a label's column; None: labels are no classes.
    """

    legend: str = ""
    classes_in: Callable | None = None
    show_texts: Callable[..., None] | None = None  # prints an example where there is no tokenizer

    def __init__(self, objective: "Objective", facts: ModelFacts | None = None):
        self.objective, self.facts = objective, facts or objective.facts
        self.recipe, self.settings, self.seed = objective.recipe, objective.settings, objective.seed

    @property
    def cache(self) -> Path:
        """The folder of prepared data."""
        from ..manifest import cache_folder

        return cache_folder(self.recipe.data.cache_dir)

    @abstractmethod
    def open(self) -> dict[str, Any]:
        """{split: its source}, `train` first. Raises UserError."""

    def texts(self, source: Any) -> "Corpus | None":
        """The text of one split as documents on which a tokenizer is trained; None: there is no text."""
        return None

    @abstractmethod
    def prepare(self, sources: dict[str, Any], tokenizer: Any = None) -> Data:
        """The data without rows: all that the rows of all splits depend on. Raises UserError.

        tokenizer: replaces the recipe's, as parts and stages of a run share one.
        """

    @abstractmethod
    def rows(self, data: Data, source: Any, split: str) -> "Rows":
        """The rows of one split; callers make those of `train` first. Raises UserError."""

    def completed(self, data: Data, rows: "dict[str, Rows]") -> "dict[str, Rows]":
        """The rows of all splits with whatever is expensive to add; by now all of them are known to be valid."""
        return rows

    def try_examples(self, examples: list, data: Data | None) -> None:
        """Raise UserError if `prepare` (data: None) or `rows` would for one of these examples (place, row)."""

    @abstractmethod
    def collator(self, data: Data, packed: bool) -> Callable[[list[dict]], dict]:
        """The function from rows to a batch. packed: whether some rows hold several documents."""

    def collated(self, data: Data, rows: "Rows", number: int, row: dict) -> dict:
        """A batch of this row alone, as training sees it in its first epoch."""
        return self.collator(data, rows.is_packed)([{ROW_IDS: number, EPOCH: 0} | row])

    def prepare_share(self, data: Data, source: Any, split: str, share: "Share") -> int:
        """Make one machine's share of the shards that `rows` of this split reads; return how many it made."""
        raise TypeError(f"{type(self).__name__} has no shards")

    # ---- rows that are asked about

    def asked_columns(self, there: Collection[str] | None = None) -> dict[str, str]:
        """{setting: column} for what the model reads of rows without labels.

        there: the rows' columns; None: those of the texts that the settings name.
        """
        return {}

    def questions(self, data: Data, source: Any) -> Iterator[tuple[dict[str, str], Any]]:
        """The examples of a split as ({column: text}, answer), for few-shot evaluation of any language model; none
        without `Objective.asks_for`. An answer is the number of a class, a number or a text.

        Raises UserError for an example that has no text or class.
        """
        return iter(())

    def with_rows(self, data: Data, source: Any) -> Iterator[tuple[str, dict]]:
        """The examples of a split, (place, columns), that have a row, in the order of the rows."""
        return iter(source)

    # ---- words

    def describe(self, data: Data, rows: "Rows") -> str:
        """A description of one split's rows in a line or two, for people."""
        return f"{counted(len(rows), self.objective.words.row)} of {rows.name}"

    def show(self, console: Any, data: Data, rows: "Rows", number: int, row: dict) -> None:
        """Print row `number`, for `anyformer preview`."""
        console.print(f"{self.objective.words.row} {number}: {row}", markup=False)
