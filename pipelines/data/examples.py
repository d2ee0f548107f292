"""Labelled examples: rows of local files or of a data set on the Hub, one collection per split.

Unlike a corpus, nothing is skipped: an example that cannot be used is an error that names its place.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..recipes.schema import DataSection
from .documents import Corpus, Document, Limits, SkipCounts, sha
from .hub_datasets import HubSource
from .text_files import (
    bounded_lines,
    check_opens,
    content_hash,
    file_kind,
    find_files,
    json_object,
    open_file,
    parquet_file,
    readable,
)
from .validation_split import ValidationSplit

# place: file and line, or data set and row, as errors name it; the row has every column a task asked for.
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

    def class_names(self, column: str) -> list[str] | None:
        """Names of the classes, where the data itself carries them (`datasets.ClassLabel`)."""
        return None

    def check_columns(self, there: list[str], place: str) -> None:
        """Raise UserError for the first column that is not among those `there`."""
        for field, column in self.columns.items():
            if column not in there:
                near = did_you_mean(column, there)
                known = "" if "known:" in near else f" (there are {', '.join(there)})"
                raise UserError(f"task.{field}={column!r}: no such column in {place}{known}{near}")


class ExampleFiles(ExampleSource):
    """JSON lines and Parquet files, also compressed with gzip; patterns as for FileSource.

    Raises UserError where a pattern matches nothing, or a file cannot be read, is of another kind or lacks a column.
    """

    def __init__(self, patterns: str | list[str], columns: dict[str, str], limits: Limits, field: str):
        self.field, self.columns, self.limits = field, columns, limits
        self.paths = find_files(field, [patterns] if isinstance(patterns, str) else patterns)
        self.name = self.paths[0].name + (f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else "")
        for path in self.paths:
            if file_kind(path) == "text":
                raise UserError(f"{field}: {path} is not .jsonl or .parquet, which labelled examples are read from")
            check_opens(field, path)
            if file_kind(path) == "parquet":
                with readable(field, path), parquet_file(field, path) as parquet:
                    self.check_columns(parquet.schema_arrow.names, str(path))

    def items(self) -> Iterator[Example]:
        for path in self.paths:
            with readable(self.field, path):
                yield from self._parquet(path) if file_kind(path) == "parquet" else self._json_lines(path)

    def identity(self) -> Any:
        files = []
        for path in self.paths:
            with readable(self.field, path):
                state = path.stat()
                files.append([path.name, state.st_size, content_hash(str(path), state.st_size, state.st_mtime_ns)])
        return {"files": files, "columns": self.columns}

    def class_names(self, column: str) -> list[str] | None:
        if file_kind(self.paths[0]) != "parquet":
            return None
        from datasets import Features

        with readable(self.field, self.paths[0]), parquet_file(self.field, self.paths[0]) as parquet:
            features = Features.from_arrow_schema(parquet.schema_arrow)
        return getattr(features[column], "names", None)

    def _json_lines(self, path: Path) -> Iterator[Example]:
        longest = 6 * self.limits.document_bytes + 2**20  # escapes are up to six times as long as what they stand for
        with open_file(path) as stream:
            for number, line in enumerate(bounded_lines(stream, longest), start=1):
                place = f"{path}, line {number}"
                if line is None:
                    raise UserError(f"{self.field}: {place}: longer than data.max_document_bytes allows")
                if not line.strip():
                    continue
                try:
                    row = json_object(line, self.field, path, number)
                except UnicodeDecodeError:
                    raise UserError(f"{self.field}: {place}: not UTF-8") from None
                self.check_columns(list(row), place)
                yield place, row

    def _parquet(self, path: Path) -> Iterator[Example]:
        number = 0
        with parquet_file(self.field, path) as parquet:
            for batch in parquet.iter_batches(batch_size=512, columns=list(dict.fromkeys(self.columns.values()))):
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1


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
        self.check_columns(self._source.rows.column_names, self.name)

    def items(self) -> Iterator[Example]:
        number = 0
        for batch in self._rows().iter(batch_size=512):
            for values in zip(*batch.values()):
                yield f"{self.name}, row {number}", dict(zip(batch, values))
                number += 1

    def _rows(self):
        return self._source.rows.select_columns(list(dict.fromkeys(self.columns.values()))).with_format(None)

    def identity(self) -> Any:
        return {"source": self._source.identity(), "columns": self.columns}

    def class_names(self, column: str) -> list[str] | None:
        return getattr(self._source.rows.features[column], "names", None)


class Examples:
    """The examples of one split: of a source's first `most`, those for validation alone, or the others."""

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
                yield example

    def identity(self) -> Any:
        return {"source": self.source.identity(), "rule": self.rule and vars(self.rule), "held": self.validation} | {
            "most": self.most
        }

    def check_not_empty(self) -> None:
        """Raise UserError where there is no example, or the first ones lack a column."""
        if next(iter(self), None) is None:
            what = f" (data.validation_fraction={self.rule.fraction} leaves none)" if self.rule else ""
            raise UserError(f"data: {self.name} holds no example for {self.split}{what}")


def open_examples(
    data: DataSection, columns: dict[str, str], *, files: Callable = ExampleFiles, hub: Callable = HubExamples
) -> dict[str, Examples]:
    """The examples of the splits the section asks for: `train`, `validation` and `test`, the last two where configured.

    Without validation files or split, validation_fraction of the training examples are for validation, by their index;
    0: none. max_documents bounds the training source before it is split. files and hub make the sources, and are called
    as the classes that are their defaults.

    Raises UserError for missing files, data sets and columns, and for a split without an example.
    """
    limits = Limits(data.max_document_bytes, data.max_line_bytes)

    def opened(split: str) -> ExampleSource | None:
        files_field = "files" if split == "train" else f"{split}_files"
        split_field = "split" if split == "train" else f"{split}_split"
        if getattr(data, files_field):
            return files(getattr(data, files_field), columns, limits, f"data.{files_field}")
        if data.dataset and getattr(data, split_field):
            return hub(data, split_field, columns, limits)
        return None

    sources = {split: opened(split) for split in ("train", "validation", "test")}
    rule = None
    if sources["validation"] is None and data.validation_fraction > 0:
        rule, sources["validation"] = ValidationSplit(data.validation_fraction), sources["train"]
    splits = {}
    for split, source in sources.items():
        if source is None:
            continue
        mine = rule if split != "test" else None
        most = data.max_documents if split == "train" or mine is not None else None
        splits[split] = Examples(split, source, rule=mine, validation=split == "validation", most=most)
        splits[split].check_not_empty()
    return splits


def text_of(row: dict, column: str, field: str, place: str) -> str:
    """The text in a column; raises UserError for anything else."""
    value = row[column]
    if not isinstance(value, str):
        held = "null" if value is None else type(value).__name__
        raise UserError(f"task.{field}={column!r}: {place} holds {held}, not text")
    return value


class ExampleTexts(Corpus):
    """The texts of some columns as documents, for a tokenizer to be trained on. columns: field -> column."""

    def __init__(self, examples: Examples, columns: dict[str, str]):
        self.examples, self.columns = examples, columns
        self.split, self.name, self.skipped = examples.split, examples.name, SkipCounts()

    def documents(self) -> Iterator[Document]:
        for place, row in self.examples:
            for field, column in self.columns.items():
                yield Document(text_of(row, column, field, place), place)

    def identity(self) -> Any:
        return {"examples": self.examples.identity(), "texts": self.columns}


def examples_fingerprint(examples: Examples) -> str:
    """Content identity, equal for equal examples also in another process."""
    return sha(examples.identity())
