"""Formats of files that hold rows, such as JSON lines and Parquet: one class each, chosen by how a file's name ends.

A further format is one class with the decorator `register_file_format`; `data.files` then takes its files, for texts
(the row's `text_field` is the document) and for labelled examples alike:

    @register_file_format(".csv")
    class CommaSeparated(FileFormat):
        def rows(self, field, path, columns, limits):
            with open_file(path) as stream:
                yield from enumerate(csv.DictReader(io.TextIOWrapper(stream, "utf-8", newline="")), start=1)

Files whose names end in nothing registered here are plain text (text_files.py).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from .documents import Limits
from .files import bounded_lines, first_line, open_file, readable


class FileFormat(ABC):
    """One way to keep rows in a file.

    suffixes: ends of the names of such files, in lower case, as registered. counts: the word for a place in the file.
    is_compressed: whether the format compresses by itself; then files have no .gz, and their size says little.
    has_own_paths: whether a path in a row is relative to the file's folder.
    """

    suffixes: tuple[str, ...]
    counts = "row"
    is_compressed = False
    has_own_paths = False

    @abstractmethod
    def rows(
        self, field: str, path: Path, columns: list[str], limits: Limits
    ) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """(number, row) of every row, in order; a row has at least `columns`, where the file has them.

        A row that cannot be used comes as a reason, a field of SkipCounts: "too_long" or "non_utf8". At most a few rows
        are held in memory. Raises UserError, beginning with `field`, for a broken file.
        """

    def columns(self, field: str, path: Path) -> list[str] | None:
        """Names of the columns; None where only the rows say. Raises UserError where the file is of another format."""
        return None

    def class_names(self, field: str, path: Path, column: str) -> list[str] | None:
        """Names of the classes, where the file carries them (`datasets.ClassLabel`)."""
        return None


FILE_FORMATS: dict[str, FileFormat] = {}  # end of a file's name -> format


def register_file_format(*suffixes: str) -> Callable[[type[FileFormat]], type[FileFormat]]:
    """Class decorator: files whose names end in one of `suffixes` (such as ".csv") are read by this FileFormat."""

    def register(cls: type[FileFormat]) -> type[FileFormat]:
        for suffix in suffixes:
            there = FILE_FORMATS.get(suffix)
            if there is not None and type(there).__qualname__ != cls.__qualname__:  # notebooks run their cells twice
                raise UserError(f"file format {suffix!r} is registered already")
        cls.suffixes = suffixes
        FILE_FORMATS.update(dict.fromkeys(suffixes, cls()))
        return cls

    return register


def format_of(path: Path) -> FileFormat | None:
    """The format of a file by its name, with or without .gz; None: plain text."""
    name = path.name.lower().removesuffix(".gz")
    return next((row for suffix, row in FILE_FORMATS.items() if name.endswith(suffix)), None)


def check_opens(field: str, path: Path) -> None:
    """Raise UserError, beginning with the recipe's `field`, where `path` cannot be opened."""
    with readable(field, path):
        file_format = format_of(path)
        if file_format is not None and file_format.is_compressed and path.suffix.lower() == ".gz":
            name = type(file_format).__name__
            raise UserError(f"{field}: {path}: {name} is compressed inside; gunzip the file first.")
        with open_file(path):
            pass


@register_file_format(".jsonl", ".ndjson")
class JsonLines(FileFormat):
    """One JSON object in each line."""

    counts = "line"
    has_own_paths = True

    def rows(self, field, path, columns, limits):
        # A line of JSON may be longer than its text: escapes are up to six times as long, and there are other keys.
        longest = 6 * limits.document_bytes + 2**20
        with open_file(path) as stream:
            for number, line in enumerate(bounded_lines(stream, longest), start=1):
                if line is None:
                    yield number, "too_long"
                elif line.strip():
                    yield number, self._row(line, field, path, number)

    @staticmethod
    def _row(line: bytes, field: str, path: Path, number: int) -> dict[str, Any] | str:
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError:
            return "non_utf8"
        except json.JSONDecodeError as error:
            raise UserError(f"{field}: {path}, line {number}: not valid JSON ({error.msg}).") from None
        if not isinstance(row, dict):
            raise UserError(f"{field}: {path}, line {number}: not a JSON object but {type(row).__name__}.")
        return row


@register_file_format(".parquet")
class Parquet(FileFormat):
    """Apache Parquet."""

    is_compressed = True

    def rows(self, field, path, columns, limits):
        number = 0
        with self._open(field, path) as parquet:
            for batch in parquet.iter_batches(batch_size=512, columns=columns):
                cells = {name: batch.column(name) for name in columns}
                for i in range(batch.num_rows):
                    try:
                        yield number, {name: column[i].as_py() for name, column in cells.items()}
                    except UnicodeDecodeError:
                        yield number, "non_utf8"
                    number += 1

    def columns(self, field, path):
        with self._open(field, path) as parquet:
            return parquet.schema_arrow.names

    def class_names(self, field, path, column):
        from datasets import Features

        with self._open(field, path) as parquet:
            features = Features.from_arrow_schema(parquet.schema_arrow)
        return getattr(features[column], "names", None)

    @staticmethod
    def _open(field: str, path: Path):
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"{field}: {path} is not a Parquet file ({first_line(error)}).") from None
