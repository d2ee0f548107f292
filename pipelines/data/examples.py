"""Labelled examples: rows of local files or of a data set on the Hub, one collection per split.

A row that cannot be used gives an error with its place; bad_rows.py finds all such rows and can leave them out.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean, shown
from ..recipes.schema import DataSection
from ..storage.cache import sha
from ..storage.checksums import States, contents, hashed_files
from .cells import IfThere, cell, cell_names
from .documents import UTF8, Corpus, Document, Limits, SkipCounts
from .file_formats import (
    FILE_FORMATS,
    FileFormat,
    check_opens,
    encoding_notes,
    format_of,
    is_unicode,
    names_of_classes,
    with_class_names,
)
from .files import NOT_UTF8, WAY_OUT, file_identities, name_of_files, readable
from .hub_datasets import HubSource
from .patterns import find_files
from .planned_split import PartOfPlan
from .validation_split import ValidationSplit

# (place, row). place: file and line, or data set and row, for errors. The row has every column that was asked for.
Example = tuple[str, dict[str, Any]]
# The same, or the error of a row that cannot be read, after which a source goes on.
Read = tuple[str, dict[str, Any] | UserError]
GROUPS = "group_field"  # the setting of the data section that names the column of groups
SOME = 100  # first rows, of which at least one must be readable


class ExampleSource(ABC):
    """A restartable stream of examples in a fixed order.

    columns: recipe field (such as "label_field") -> the column or key that it names. Every row has all of them; one
    that is IfThere may be missing in the data.
    """

    name: str
    columns: dict[str, str]

    @abstractmethod
    def items(self) -> Iterator[Read]:
        """Every example, from the first one, with an error in place of a row that cannot be read. Raises UserError."""

    @abstractmethod
    def identity(self) -> Any:
        """JSON that changes whenever the examples do."""

    def only(self, *columns: str | None) -> "ExampleSource":
        """The same examples with these columns alone; the others need not be read."""
        source = copy.copy(self)
        source.columns = {field: name for field, name in self.columns.items() if name in columns}
        return source

    def named(self) -> list[dict[str, list[str]]]:
        """For each file {column: names of its classes}, where the data itself carries them (`datasets.ClassLabel`)."""
        return []

    def class_names(self, column: str) -> list[str] | None:
        """Those of the first file, then those that only later files have: a number stands for its own file's name."""
        named = [names.get(column) for names in self.named()]
        return list(dict.fromkeys(name for names in named for name in names or [])) if named and named[0] else None

    def notes(self) -> list[str]:
        """Sentences a user should read once the examples have been iterated."""
        return []

    def check_columns(self, there: list[str], place: str) -> None:
        """Raise UserError for the first column that is not among those `there`."""
        error = self.missing_column(there, place)
        if error is not None:
            raise error

    def missing_column(self, there: list[str], place: str) -> UserError | None:
        """The error for the first column that is not among those `there`; None: all are."""
        for field, column in self.columns.items():
            if column not in there and not isinstance(column, IfThere):
                near = did_you_mean(column, there)
                known = "" if "known:" in near else f" (there are {', '.join(map(shown, there))})"
                section = "data" if field == GROUPS else "task"
                return UserError(f"{section}.{field}={column!r}: no such column in {place}{known}{near}")
        return None


class ExampleFiles(ExampleSource):
    """Files of a format with rows, also compressed; patterns and `without` as for FileSource.

    Raises UserError where a file cannot be read, is of another kind or lacks a column.
    """

    def __init__(
        self,
        patterns: str | list[str],
        columns: dict[str, str],
        limits: Limits,
        field: str,
        without: Collection[str] = (),
    ):
        self.field, self.columns, self.limits = field, columns, limits
        self.paths = list(find_files(field, patterns, without))
        self.check()

    def check(self) -> None:
        """Set the name. Raise UserError for a file of another format or without the columns."""
        self.name = name_of_files(self.paths)
        for path in self.paths:
            contents.value(path, f"has rows: {self.columns} {self.limits.encoding}", self._check_file)

    def _check_file(self, path: Path) -> None:
        field, file_format = self.field, format_of(path)
        if file_format is None:
            known = ", ".join(FILE_FORMATS)
            raise UserError(f"{field}: {path} is of no format that labelled examples are read from; known: {known}")
        check_opens(field, path)
        with readable(field, path):
            columns = file_format.columns(field, path)
            if columns is None:
                check_some(self._rows(path, file_format))  # a missing column is found before anything is encoded
        if columns is not None:
            self.check_columns(columns, str(path))

    def items(self) -> Iterator[Read]:
        for path in self.paths:
            with readable(self.field, path):
                yield from self._rows(path, format_of(path))

    def identity(self) -> Any:
        other = {} if self.limits.encoding == UTF8 else {"encoding": self.limits.encoding}
        named = {"class names": names} if any(names := self.named()) else {}
        return {"files": file_identities(self.field, self.paths), "columns": self.columns} | other | named

    def notes(self) -> list[str]:
        return encoding_notes(self.field, self.paths, self.limits)

    def named(self) -> list[dict[str, list[str]]]:
        return [self._named(path) for path in self.paths]

    def _named(self, path: Path) -> dict[str, list[str]]:
        return names_in(self.field, path, self.columns)

    def _rows(self, path: Path, file_format: FileFormat) -> Iterator[Read]:
        faults = {"too_long": "longer than data.max_document_bytes allows", "non_utf8": NOT_UTF8}
        columns, named = list(dict.fromkeys(self.columns.values())), self._named(path)
        for number, row in file_format.rows(self.field, path, columns, self.limits):
            place = f"{path}, {file_format.counts} {number}"
            if row == "non_utf8" and self.limits.encoding != UTF8:  # a fault of the setting, not of single rows
                raise UserError(f"{self.field}: {place}: not {self.limits.encoding}; {WAY_OUT}")
            if isinstance(row, dict):
                yield place, self._with_cells(row, columns, place, named)
            else:
                yield place, row if isinstance(row, UserError) else UserError(f"{self.field}: {place}: {faults[row]}")

    def _with_cells(
        self, row: dict[str, Any], columns: list[str], place: str, named: dict[str, list[str]]
    ) -> dict[str, Any] | UserError:
        """The row with every column under its full name, nested ones included. named: as _named returns it."""
        try:
            cells = {column: with_class_names(cell(row, column), named.get(column)) for column in columns}
        except KeyError:
            return self.missing_column(cell_names(row), place)
        if not all(map(all_unicode, cells.values())):  # a JSON escape can be one half of a surrogate pair
            return UserError(f"{self.field}: {place}: {NOT_UTF8}")
        return row | cells


def names_in(field: str, path: Path, columns: dict[str, str]) -> dict[str, list[str]]:
    """{column: names of the classes} of the columns for which a file has such names."""
    columns = list(dict.fromkeys(columns.values()))

    def found(path: Path) -> dict[str, list[str]]:
        with readable(field, path):
            names = {column: format_of(path).class_names(field, path, column) for column in columns}
        return {column: of for column, of in names.items() if of is not None}

    return contents.value(path, f"class names: {columns}", found)


def check_some(rows: Iterable[Read]) -> None:
    """Raise the first row's error where none of the first SOME rows can be read."""
    first = None
    for _, row in islice(rows, SOME):
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


class HubExamples(ExampleSource):
    """One split of a data set on the Hub or in a folder; errors as HubSource's."""

    def __init__(self, data: DataSection, split_field: str, columns: dict[str, str], limits: Limits):
        self._source = HubSource(data, limits, split_field, text_field=None)
        self.columns, self.name = columns, f"{data.dataset} ({self._source.split})"
        self.check_columns(cell_names(self._source.rows.features), self.name)

    def items(self) -> Iterator[Read]:
        number, files = 0, zip(self.named(), (rows for _, rows in self._files()))
        named_of_rows = chain.from_iterable(repeat(named, rows) for named, rows in files)
        for batch in self._rows().iter(batch_size=512):
            for values, named in zip(zip(*batch.values()), named_of_rows):
                row, place = dict(zip(batch, values)), f"{self.name}, row {number}"
                try:
                    yield place, row | {c: with_class_names(cell(row, c), named.get(c)) for c in self.columns.values()}
                except KeyError:  # a struct that is null in this row
                    yield place, self.missing_column(cell_names(row), place)
                number += 1

    def _files(self) -> list[tuple[Path | None, int]]:
        """(file, number of its rows); None stands for files that are not here."""
        return self._source.parquet_files() or [(None, len(self._source.rows))]

    def _rows(self):
        rows = self._source.rows
        # The columns to read: for names joined by dots, the outermost column.
        outermost = dict.fromkeys(c if c in rows.features else c.split(".")[0] for c in self.columns.values())
        return rows.select_columns([c for c in outermost if c in rows.features]).with_format(None)

    def identity(self) -> Any:
        named = {"class names": names} if any(names := self.named()) else {}
        return {"source": self._source.identity(), "columns": self.columns} | named

    def named(self) -> list[dict[str, list[str]]]:
        """Of a folder's Parquet files each has its own, though datasets calls all by those of the first file."""
        features = self._source.rows.features
        known = {c: names for c in self.columns.values() if (names := names_of_classes(features, c)) is not None}
        return [known | (names_in(self.name, path, self.columns) if path else {}) for path, _ in self._files()]


class Examples:
    """The examples of one split: of a source's first `most`, those that `rule` selects, or the others.

    files: the state, before hashing, of each file that the latest examples_fingerprint() hashed. left_out: {number in
    the source: BadRow} of rows that are left out; left_out_words: how many of them for which reasons.
    """

    files: States = {}
    left_out_words: str | None = None
    _watch: Callable[[dict], None] | None = None

    def __init__(
        self,
        split: str,
        source: ExampleSource,
        *,
        rule: "ValidationSplit | PartOfPlan | None" = None,
        validation: bool = False,
        most: int | None = None,
    ):
        self.split, self.source, self.rule, self.validation, self.most = split, source, rule, validation, most
        self.name, self.left_out = source.name, {}

    def __iter__(self) -> Iterator[Example]:
        for _, (place, row) in self.numbered():
            if isinstance(row, UserError):
                raise row
            if self._watch is not None:
                self._watch(row)
            yield place, row

    def numbered(self) -> Iterator[tuple[int, Read]]:
        """(number in the source, what was read) of each example."""
        for index, read in enumerate(self.source.items()):
            if index == self.most:
                return
            is_mine = self.rule is None or self.rule.is_validation(index, "") == self.validation
            if is_mine and index not in self.left_out:
                yield index, read

    def watched(self, watch: Callable[[dict], None]) -> "Examples":
        """The same examples; `watch` is called with each row before it is yielded."""
        examples = copy.copy(self)
        examples._watch = watch
        return examples

    def only(self, column: str) -> "Examples":
        """The same examples with this column alone; the others need not be read."""
        examples = copy.copy(self)
        examples.source = self.source.only(column)
        return examples

    def notes(self) -> list[str]:
        """Sentences a user should read once the examples have been iterated."""
        return [*self.source.notes(), *([self.left_out_words] if self.left_out_words else [])]

    def identity(self) -> Any:
        rule = {"rule": self.rule and self.rule.identity(), "held": self.validation, "most": self.most}
        return {"source": self.source.identity()} | rule | ({"without": sorted(self.left_out)} if self.left_out else {})


class ExampleTexts(Corpus):
    """Texts made of examples, as documents on which a tokenizer is trained.

    render: (place, row) -> its texts; raises UserError if there is none. key: JSON that changes whenever `render` makes
    other texts of equal examples.
    """

    def __init__(self, examples: Examples, render: Callable[[str, dict], list[str]], key: dict[str, Any]):
        self.examples, self.render, self.key = examples, render, key
        self.split, self.name, self.skipped = examples.split, examples.name, SkipCounts()

    def documents(self) -> Iterator[Document]:
        for place, row in self.examples:
            for text in self.render(place, row):
                yield Document(text, place)

    def identity(self) -> Any:
        return {"examples": self.examples.identity(), **self.key}


def examples_fingerprint(examples: Examples) -> str:
    """Content identity, equal for equal examples also in another process."""
    with hashed_files() as examples.files:
        return sha(examples.identity())
