"""Labelled examples: rows of local files or of a data set on the Hub, one collection per split.

Examples are never skipped, unlike documents: one that cannot be used is an error with its place.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..recipes.schema import DataSection
from ..storage.cache import sha
from ..storage.checksums import States, hashed_files
from .cells import cell, cell_names
from .documents import UTF8, Corpus, Document, Limits, SkipCounts
from .file_formats import FILE_FORMATS, NOT_UTF8, FileFormat, check_opens, format_of, names_of_classes
from .files import file_identities, name_of_files, readable
from .hub_datasets import HubSource
from .patterns import find_files
from .validation_split import ValidationSplit

# (place, row). place: file and line, or data set and row, for errors. The row has every column that was asked for.
Example = tuple[str, dict[str, Any]]


class ExampleSource(ABC):
    """A restartable stream of examples in a fixed order.

    columns: recipe field (such as "label_field") -> column, or key, it names. Every row has them all.
    """

    name: str
    columns: dict[str, str]

    @abstractmethod
    def items(self) -> Iterator[Example]:
        """Every example, from the first one. Raises UserError."""

    @abstractmethod
    def identity(self) -> Any:
        """JSON that changes whenever the examples do."""

    def only(self, column: str) -> "ExampleSource":
        """The same examples with this column, beside which no other one need be read."""
        source = copy.copy(self)
        source.columns = {field: name for field, name in self.columns.items() if name == column}
        return source

    def class_names(self, column: str) -> list[str] | None:
        """Names of the classes, where the data itself carries them (`datasets.ClassLabel`)."""
        return None

    def notes(self) -> list[str]:
        """Sentences a user should read once the examples have been iterated."""
        return []

    def check_columns(self, there: list[str], place: str) -> None:
        """Raise UserError for the first column that is not among those `there`."""
        for field, column in self.columns.items():
            if column not in there:
                near = did_you_mean(column, there)
                known = "" if "known:" in near else f" (there are {', '.join(there)})"
                raise UserError(f"task.{field}={column!r}: no such column in {place}{known}{near}")


class ExamplesInFiles(ExampleSource):
    """Files that hold examples, or are some; patterns and `without` as for FileSource. A subclass checks them at once.

    Raises UserError where a pattern matches nothing, and as `check` does.
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

    @abstractmethod
    def check(self) -> None:
        """Set the name. Raise UserError for a file of another kind."""


class ExampleFiles(ExamplesInFiles):
    """Files of a format with rows, also compressed.

    Raises UserError where a file cannot be read, is of another kind or lacks a column.
    """

    def check(self) -> None:
        self.name, field = name_of_files(self.paths), self.field
        for path in self.paths:
            file_format = format_of(path)
            if file_format is None:
                known = ", ".join(FILE_FORMATS)
                raise UserError(f"{field}: {path} is of no format that labelled examples are read from; known: {known}")
            check_opens(field, path)
            with readable(field, path):
                there = file_format.columns(field, path)
                if there is None:
                    next(self._rows(path, file_format), None)  # a missing column is found before anything is encoded
            if there is not None:
                self.check_columns(there, str(path))

    def items(self) -> Iterator[Example]:
        for path in self.paths:
            with readable(self.field, path):
                yield from self._rows(path, format_of(path))

    def identity(self) -> Any:
        other = {} if self.limits.encoding == UTF8 else {"encoding": self.limits.encoding}
        return {"files": file_identities(self.field, self.paths), "columns": self.columns} | other

    def class_names(self, column: str) -> list[str] | None:
        path = self.paths[0]
        with readable(self.field, path):
            return format_of(path).class_names(self.field, path, column)

    def _rows(self, path: Path, file_format: FileFormat) -> Iterator[Example]:
        faults = {"too_long": "longer than data.max_document_bytes allows", "non_utf8": NOT_UTF8}
        columns = list(dict.fromkeys(self.columns.values()))
        for number, row in file_format.rows(self.field, path, columns, self.limits):
            place = f"{path}, {file_format.counts} {number}"
            if isinstance(row, str):
                raise UserError(f"{self.field}: {place}: {faults[row]}")
            try:
                cells = {column: cell(row, column) for column in columns}
            except KeyError:
                self.check_columns(cell_names(row), place)
                raise
            if not all(map(_is_unicode, cells.values())):  # JSON can write half of a character by an escape
                raise UserError(f"{self.field}: {place}: {faults['non_utf8']}")
            yield place, row | cells


def _is_unicode(value: Any) -> bool:
    """Whether all texts in a cell can be written as UTF-8."""
    if isinstance(value, list | dict):
        return all(map(_is_unicode, value.values() if isinstance(value, dict) else value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


class HubExamples(ExampleSource):
    """One split of a data set on the Hub or in a folder; errors as HubSource's."""

    def __init__(self, data: DataSection, split_field: str, columns: dict[str, str], limits: Limits):
        split = getattr(data, split_field)
        self._source = HubSource(
            data.dataset,
            limits,
            split=split,
            split_field=split_field,
            config_name=data.config_name,
            revision=data.revision,
            text_field=None,
        )
        self.columns, self.name = columns, f"{data.dataset} ({split})"
        features = self._source.rows.features
        self.check_columns(cell_names(features), self.name)

    def items(self) -> Iterator[Example]:
        number = 0
        for batch in self._rows().iter(batch_size=512):
            for values in zip(*batch.values()):
                row, place = dict(zip(batch, values)), f"{self.name}, row {number}"
                try:
                    yield place, row | {column: cell(row, column) for column in self.columns.values()}
                except KeyError:  # a struct that is null in this row
                    self.check_columns(cell_names(row), place)
                    raise
                number += 1

    def _rows(self):
        rows = self._source.rows
        # The columns that are read: themselves, or those that hold names joined by dots.
        read = dict.fromkeys(c if c in rows.features else c.split(".")[0] for c in self.columns.values())
        return rows.select_columns(list(read)).with_format(None)

    def identity(self) -> Any:
        return {"source": self._source.identity(), "columns": self.columns}

    def class_names(self, column: str) -> list[str] | None:
        return names_of_classes(self._source.rows.features, column)


class Examples:
    """The examples of one split: of a source's first `most`, those for validation alone, or the others.

    files: those that the latest examples_fingerprint() has hashed, as they were before.
    """

    files: States = {}
    _watch: Callable[[dict], None] | None = None

    def __init__(
        self,
        split: str,
        source: ExampleSource,
        *,
        rule: ValidationSplit | None = None,
        validation: bool = False,
        most: int | None = None,
    ):
        self.split, self.source, self.rule, self.validation, self.most = split, source, rule, validation, most
        self.name = source.name

    def __iter__(self) -> Iterator[Example]:
        for index, example in enumerate(self.source.items()):
            if index == self.most:
                return
            if self.rule is None or self.rule.is_validation(index, "") == self.validation:
                if self._watch is not None:
                    self._watch(example[1])
                yield example

    def watched(self, watch: Callable[[dict], None]) -> "Examples":
        """The same examples; `watch` gets each row before it is given."""
        examples = copy.copy(self)
        examples._watch = watch
        return examples

    def only(self, column: str) -> "Examples":
        """The same examples with this column, beside which no other one need be read."""
        examples = copy.copy(self)
        examples.source = self.source.only(column)
        return examples

    def notes(self) -> list[str]:
        """Sentences a user should read once the examples have been iterated."""
        return self.source.notes()

    def identity(self) -> Any:
        return {"source": self.source.identity(), "rule": self.rule and vars(self.rule), "held": self.validation} | {
            "most": self.most
        }


class ExampleTexts(Corpus):
    """Texts made of examples, as documents for a tokenizer to be trained on.

    render: (place, row) -> its texts; raises UserError where there is none. key: JSON that changes whenever they do for
    equal examples.
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
