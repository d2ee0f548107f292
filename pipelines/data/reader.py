"""Readers of people's rows: one for each kind of place in which rows are kept, one view for each use of a row."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Self

from ..errors import UserError, did_you_mean, shown
from .cells import IfThere, cell, cell_names
from .documents import UTF8, Document, Limits, Skipped, Source
from .file_formats import FILE_FORMATS, FileFormat, is_unicode, with_class_names
from .files import NOT_UTF8, WAY_OUT
from .plain_text import PlainText, WholeFile

# (place, row). place: file and line, or data set and row, for errors. The row has every column that was asked for.
Example = tuple[str, dict[str, Any]]
# The same, or in place of the row the error of one that cannot be used, after which a reader goes on.
Read = tuple[str, dict[str, Any] | UserError]
GROUPS = "group_field"  # the setting of the data section that names the column of groups
SENTENCES = "sentence_field"  # the setting that names the column of the sentence to which a row of one word belongs
SOME = 100  # first rows, of which at least one must be readable


class Row(NamedTuple):
    """What stands at one place.

    place: for errors, such as a path and a line. source: a short one, for documents. values: {column: value}; in place
    of those of a row that cannot be read the reason, one of SKIPPED, or an error. names: {column: the names of its
    classes}, where the data hold them. unread: columns of the place beside these; None: it is no table.
    """

    place: str
    source: str
    values: dict[str, Any] | str | UserError
    names: dict[str, list[str]] = {}
    unread: Sequence[str] | None = ()


class View(ABC):
    """What one use makes of a row: a document, an example, a row to answer.

    columns: {recipe field, such as "label_field": the column or key that it names}. Every row must have all of them,
    but for those that are IfThere. where: the section that errors name. names_classes: whether it reads their names.
    other: how files of no format with rows are read.
    """

    names_classes = False
    other: FileFormat | None = None

    def __init__(self, columns: dict[str, str], limits: Limits, where: str = "data"):
        self.columns, self.limits, self.where = columns, limits, where

    @abstractmethod
    def __call__(self, row: Row, field: str) -> Any:
        """What is made of a row. field: of the files or the data set, with which errors begin. Raises UserError."""

    def identity(self) -> dict[str, Any]:
        """Part of the fingerprint of the data."""
        return {"columns": self.columns}

    def only(self, *columns: str | None) -> Self:
        """The same view of these columns alone."""
        view = copy.copy(self)
        view.columns = {field: name for field, name in self.columns.items() if name in columns or field == SENTENCES}
        return view

    def joined(self, rows: Iterator[tuple[Row, Any]]) -> Iterator[tuple[Row, Any]]:
        """The rows; where they hold a word each and a setting names the column of their sentence, one for each
        sentence, which has lists of what its rows hold."""
        column = self.columns.get(SENTENCES)
        return rows if column is None else sentences(rows, column, [column, self.columns.get(GROUPS), "file"])

    def check_some(self, rows: Iterable[Row], field: str) -> None:
        """Raise UserError where the first rows cannot be used: a fault is found before anything is encoded."""
        next((self(row, field) for row in rows), None)

    def check_columns(self, there: list[str], place: str) -> None:
        """Raise UserError for the first column that is not among those `there`."""
        error = self.missing(there, place)
        if error is not None:
            raise error

    def missing(self, there: list[str], place: str, noun: str = "column") -> UserError | None:
        """The error for the first column that is not among those `there`; None: all are."""
        lacking = ((f, c) for f, c in self.columns.items() if c not in there and not isinstance(c, IfThere))
        field, column = next(lacking, (None, ""))
        return None if field is None else self.lacks(field, column, there, place, noun)

    def lacks(self, field: str, column: str, there: list[str], place: str, noun: str) -> UserError:
        return UserError(f"{self.where}.{field}={column!r}: no such {noun} in {place}{did_you_mean(column, there)}")


class TextView(View):
    """A document: the text in one column, or what is wrong with it. All other faults raise UserError.

    document: what is one in a file of plain text (PlainText).
    """

    def __init__(self, text_field: str, limits: Limits, where: str = "data", document: str = "file"):
        super().__init__({"text_field": text_field}, limits, where)
        self.text_field, self.other = text_field, PlainText(document)

    def __call__(self, row: Row, field: str) -> Document | Skipped:
        values, source = row.values, row.source
        if isinstance(values, UserError):
            raise values
        if isinstance(values, str):
            return Skipped(values, source)
        try:
            text = cell(values, self.text_field)
        except KeyError:
            raise self.missing(cell_names(values), row.place, "key") from None
        if text is None:
            return Skipped("empty", source)
        if not isinstance(text, str):
            kind = type(text).__name__
            raise UserError(f"{self.where}.text_field={self.text_field!r}: {source} holds {kind}, not text.")
        return self.limits.checked(text, source)

    def identity(self) -> dict[str, Any]:
        return {"text_field": self.text_field, "limits": self.limits.identity()}


class ExampleView(View):
    """An example: its place, and its row with every column under its full name, or the error of one it cannot use.

    Without columns it is a row of which all are read. too_long: what errors say of a longer row. says: (values of a row
    that lacks a column) -> what it is instead, with which its place goes on in the error.
    """

    names_classes = True
    too_long = "longer than data.max_document_bytes allows"
    says: Callable[[dict[str, Any]], str] | None = None

    def __init__(self, columns: dict[str, str], limits: Limits, where: str = "data"):
        super().__init__(columns, limits, where)
        if limits.separator is not None:  # a text file is a table, too
            self.other = FILE_FORMATS[".tsv"]
        elif {*columns} == {"tokens_field", "tags_field"}:
            self.other = FILE_FORMATS[".conll"]
        elif {*columns} == {"text_field", "label_field"}:
            self.other = WholeFile(columns)

    def __call__(self, row: Row, field: str) -> Read:
        return row.place, self._values(row, field)

    def _values(self, row: Row, field: str) -> dict[str, Any] | UserError:
        values, place, encoding = row.values, row.place, self.limits.encoding
        if isinstance(values, UserError):
            return values
        if isinstance(values, str):
            if values == "non_utf8" and encoding != UTF8:  # a fault of the setting, not of single rows
                raise UserError(f"{field}: {place}: not {encoding}; {WAY_OUT}")
            return UserError(f"{field}: {place}: {NOT_UTF8 if values == 'non_utf8' else self.too_long}")
        try:
            cells = {c: with_class_names(cell(values, c), row.names.get(c)) for c in self.columns.values()}
        except KeyError:
            return self.missing(cell_names(values), place if self.says is None else place + self.says(values))
        if not all_unicode(cells or values):  # a JSON escape can be one half of a surrogate pair
            return UserError(f"{field}: {place}: {NOT_UTF8}")
        return values | cells

    def identity(self) -> dict[str, Any]:
        return super().identity() | self.limits.of_files()

    def check_some(self, rows: Iterable[Row], field: str) -> None:
        check_some(self(row, field) for row in rows)

    def lacks(self, field: str, column: str, there: list[str], place: str, noun: str) -> UserError:
        near = did_you_mean(column, there)
        known = "" if "known:" in near else f" (there are {', '.join(map(shown, there))})"
        section = "data" if field == GROUPS else "task"
        return UserError(f"{section}.{field}={column!r}: no such column in {place}{known}{near}")


class Reader(Source):
    """The rows of one place in a fixed order, any number of times, as a view sees them.

    field: the setting that names the place, with which errors begin.
    """

    field = "data"

    def __init__(self, view: View):
        self.view, self.where, self.limits = view, view.where, view.limits

    @property
    def columns(self) -> dict[str, str]:
        return self.view.columns

    @abstractmethod
    def rows_from(self, place: Any = None) -> Iterator[tuple[Row, Any]]:
        """Every row after a place, also one that cannot be read, each with the place after it, as JSON."""

    def read_from(self, place: Any = None) -> Iterator[tuple[Row, Any, Any]]:
        for row, after in self.view.joined(self.rows_from(place)):
            yield row, self.view(row, self.field), after

    def check(self) -> None:
        """Raise UserError where the place cannot be read, or lacks the view's columns."""

    def all_columns(self) -> list[str]:
        """Those that must be named to be read, the outermost; of other places every row has all."""
        return []

    def with_all_columns(self, **more: str) -> Self:
        """The same rows as examples with all their columns. more: further ones that a view takes, by their settings."""
        columns = {name: IfThere(name) for name in self.all_columns()} | more
        return self.seeing(ExampleView(columns, self.limits))

    def seeing(self, view: View) -> Self:
        """The same rows for another use."""
        reader = copy.copy(self)
        reader.view = view
        return reader

    def only(self, *columns: str | None) -> "Reader":
        """The same rows with these columns alone; the others need not be read."""
        return self.seeing(self.view.only(*columns))

    def none_usable(self) -> str:
        """What to add to an error where no row can be used: the settings that may be wrong."""
        return ""

    def named(self) -> list[dict[str, list[str]]]:
        """For each file {column: names of its classes}, where the data itself carries them (`datasets.ClassLabel`)."""
        return []

    def class_names(self, column: str) -> list[str] | None:
        """Those of the first file, then those that only later files have: a number stands for its own file's name."""
        named = [names.get(column) for names in self.named()]
        return list(dict.fromkeys(name for names in named for name in names or [])) if named and named[0] else None

    def identity(self) -> Any:
        named = {"class names": names} if any(names := self.named()) else {}
        return self.view.identity() | named


def sentences(rows: Iterable[tuple[Row, Any]], column: str, shared: list[str | None]) -> Iterator[tuple[Row, Any]]:
    """A row for each run of rows with one value in a column, and the place after it; an empty one goes on.

    shared: columns that have one value for a sentence, its first row's. A row that cannot be read stands for its
    sentence; one without the column stays as it is.
    """
    parts: list[Row] = []
    end, sentence = None, None
    for row, after in rows:
        value = row.values.get(column, row) if isinstance(row.values, dict) else None
        if parts and value not in (None, "", sentence):
            yield sentence_of(parts, column, shared), end
            parts = []
        sentence = value if not parts or value not in (None, "") else sentence
        parts.append(row)
        end = after
    if parts:
        yield sentence_of(parts, column, shared), end


def sentence_of(parts: list[Row], column: str, shared: list[str | None]) -> Row:
    first = next((row for row in parts if not isinstance(row.values, dict)), parts[0])
    if not isinstance(first.values, dict) or column not in first.values:
        return first
    values = {
        name: value if name in shared else [row.values.get(name) for row in parts]
        for name, value in first.values.items()
    }
    return first._replace(values=values)


def check_some(reads: Iterable[Read]) -> None:
    """Raise the first row's error where none of the first SOME rows can be used."""
    first = None
    for _, row in islice(reads, SOME):
        if not isinstance(row, UserError):
            return
        first = first or row
    if first is not None:
        raise first


def all_unicode(value: Any) -> bool:
    """Whether all texts in a cell can be written as UTF-8."""
    if isinstance(value, list | dict):
        return all(map(all_unicode, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, str) or is_unicode(value)
