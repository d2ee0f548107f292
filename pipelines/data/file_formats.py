"""Formats of files that hold rows, such as JSON lines and Parquet: one class each, chosen by how a file's name ends.

A new format is one class with the decorator `register_file_format`; `data.files` then takes its files, for texts (the
row's `text_field` is the document) and for labelled examples alike; Conll is a short one. plain_text.py says which
other files are plain text.
"""

import csv
import io
import json
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean, first_line, need_package
from ..lazy import datasets, pyarrow
from ..storage.contents import contents
from ..storage.packed_files import open_packed, packing_of, unpacked_name
from .cells import cell, from_sheet
from .documents import UTF8, Limits
from .files import WAY_OUT, bounded_lines, encoding_of, open_file, readable
from .published_json import rows_in, table_in

QUOTES = "a value that begins with a quotation mark needs quotes around it, and its own quotes doubled"


class FileFormat(ABC):
    """One way to keep rows in a file.

    suffixes: ends of the names of such files, in lower case, as registered. counts: what row numbers count, as a word.
    is_compressed: whether the format compresses by itself; its files are not packed, and their size says little.
    has_own_paths: whether a path in a row is relative to the file's folder. ways: settings of how such a table is read.
    """

    suffixes: tuple[str, ...]
    ways: tuple[str, ...] = ()
    counts = "row"
    is_compressed = False
    has_own_paths = False

    @abstractmethod
    def rows(
        self, field: str, path: Path, columns: list[str], limits: Limits
    ) -> Iterator[tuple[int, dict[str, Any] | str | UserError]]:
        """(number, row) of every row, in order; a row has at least `columns`, where the file has them.

        In place of a row that cannot be used comes its reason, one of SKIPPED ("too_long" or "non_utf8"); in place of a
        broken one, after which others can be read, a UserError that begins with `field`.
        Raises UserError, beginning with `field`, for a broken file.
        """

    def check_kind(self, field: str, path: Path, pattern: str) -> None:
        """Raise UserError, beginning with `field`, for a file, which `pattern` matches, that is not read so."""

    def columns(self, field: str, path: Path) -> list[str] | None:
        """Names of the columns; None where each row has its own. Raises UserError for a file of another format."""
        return None

    def unread(self, field: str, path: Path, columns: list[str], limits: Limits) -> list[str] | None:
        """Names of the columns that its rows lack where these are read; None: it is no table."""
        return [column for column in self.columns(field, path) or () if column not in columns]

    def class_names(self, field: str, path: Path, column: str) -> list[str] | None:
        """Names of the classes, where the file carries them (`datasets.ClassLabel`)."""
        return None

    def encoding(self, path: Path) -> str | None:
        """The encoding of a file, as encoding_of finds it; UTF-8 of one that is no text."""
        return UTF8 if self.is_compressed else encoding_of(path)

    def found(self, path: Path, limits: Limits) -> dict[str, str]:
        """{setting of the data section: value} of how a file is read, where neither `limits` nor the format says it."""
        encoding = self.encoding(path) if limits.encoding == UTF8 else None
        return {} if encoding in (None, UTF8) else {"encoding": encoding}

    def like(self, path: Path, limits: Limits, other: Limits) -> Limits:
        """The limits, with what those of other files say where the file itself does not tell otherwise."""
        is_told = other.encoding == UTF8 or self.encoding(path) not in (None, "cp1252")
        return limits if is_told else replace(limits, encoding=other.encoding)


def names_of_classes(features: dict[str, Any], column: str) -> list[str] | None:
    """The class names of a column, also a nested one (named with dots), or of its lists; None: it has none."""
    try:
        feature = cell(features, column)
    except KeyError:
        return None
    while not hasattr(feature, "names") and hasattr(feature, "feature"):
        feature = feature.feature
    return getattr(feature, "names", None)


class ClassNumber(int):
    """The number of a class in data that name their classes; class_name: its name there."""

    class_name: str


def with_class_names(value: Any, names: list[str] | None) -> Any:
    """A cell, also a list, with ClassNumbers in place of its numbers of classes. names: theirs; None: it has none."""
    if names is None:
        return value
    if isinstance(value, list):
        return [with_class_names(one, names) for one in value]
    if not isinstance(value, int) or not 0 <= value < len(names):
        return value
    number = ClassNumber(value)
    number.class_name = names[value]
    return number


_SPACE = re.compile(r"\s*")
_LINE_END = re.compile(r"\r\n|\r|\n")
NEW_DOCUMENT = "-DOCSTART-"  # in CoNLL files the first column of a line between documents
FILE_FORMATS: dict[str, FileFormat] = {}  # end of a file's name -> format


def register_file_format(*suffixes: str) -> Callable[[type[FileFormat]], type[FileFormat]]:
    """Class decorator: files whose names end in one of `suffixes` (such as ".psv") are read by this FileFormat."""

    def register(cls: type[FileFormat]) -> type[FileFormat]:
        for suffix in suffixes:
            taken = FILE_FORMATS.get(suffix)
            if taken is not None and type(taken).__qualname__ != cls.__qualname__:  # notebooks run their cells twice
                raise UserError(f"file format {suffix!r} is registered already")
        cls.suffixes = suffixes
        FILE_FORMATS.update(dict.fromkeys(suffixes, cls()))
        return cls

    return register


def format_of(path: Path) -> FileFormat | None:
    """The format of a file with rows, packed or not, by its name; None: no such format is known."""
    name = unpacked_name(path.name)
    return next((row for suffix, row in FILE_FORMATS.items() if name.endswith(suffix)), None)


def check_opens(field: str, path: Path) -> None:
    """Raise UserError, beginning with the recipe's `field`, where `path` cannot be opened."""
    with readable(field, path):
        file_format = format_of(path)
        if file_format is not None and file_format.is_compressed and packing_of(path) is not None:
            name = type(file_format).__name__
            raise UserError(f"{field}: {path}: {name} is compressed inside; unpack the file first.")
        open_packed(path).close()


@register_file_format(".jsonl", ".ndjson")
class JsonLines(FileFormat):
    """One JSON object in each line."""

    counts = "line"
    has_own_paths = True

    def rows(self, field, path, columns, limits):
        # A line of JSON may be longer than its text: escapes are up to six times as long, and there are other keys.
        longest = 6 * limits.document_bytes + 2**20
        with open_file(path, limits.encoding) as stream:
            for number, line in enumerate(bounded_lines(stream, longest), start=1):
                if line is None:
                    yield number, "too_long"
                elif line.strip():
                    yield number, self._row(line, field, path, number)

    @staticmethod
    def _row(line: bytes, field: str, path: Path, number: int) -> dict[str, Any] | str | UserError:
        try:
            return _checked_row(json.loads(line.decode()), f"{field}: {path}, line {number}")
        except UnicodeDecodeError:
            return "non_utf8"
        except (ValueError, RecursionError) as error:
            return _broken_json(error, f"{field}: {path}, line {number}")


def _broken_json(error: ValueError | RecursionError, place: str) -> UserError:
    """The error for what json raises, also because of too deep nesting and of numbers with too many digits."""
    return UserError(f"{place}: not valid JSON ({getattr(error, 'msg', first_line(error))}).")


def _checked_row(value: Any, place: str) -> dict[str, Any] | UserError:
    if not isinstance(value, dict):
        return UserError(f"{place}: not a JSON object but {type(value).__name__}.")
    return value


@register_file_format(".json")
class JsonArray(FileFormat):
    """An array of JSON objects, or objects one after the other, over any number of lines; the file is read whole."""

    has_own_paths = True

    def rows(self, field, path, columns, limits):
        with open_file(path, limits.encoding) as stream:
            text = io.TextIOWrapper(stream, "utf-8", "surrogateescape").read()
        is_clean = is_unicode(text)
        for number, value in enumerate(self._values(text, f"{field}: {path}"), start=1):
            row = _checked_row(value, f"{field}: {path}, row {number}")
            yield number, row if is_clean or is_unicode(json.dumps(value, ensure_ascii=False)) else "non_utf8"

    @staticmethod
    def _values(text: str, where: str) -> Iterator[Any]:
        decoder, place = json.JSONDecoder(), _SPACE.match(text).end()
        while place < len(text):
            begin = place
            try:
                value, place = decoder.raw_decode(text, begin)
            except (ValueError, RecursionError) as error:
                line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
                raise _broken_json(error, f"{where}{line}") from None
            place = _SPACE.match(text, place).end()
            is_alone = place == len(text) and not text[:begin].strip()
            yield from (is_alone and table_in(value)) or rows_in(value)


SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}  # by their names in recipes
_SAMPLE = 2**18  # bytes of a table in which its separator is found
_FIRST = 100  # rows of it


@register_file_format(".csv")
class Separated(FileFormat):
    """A table as text (RFC 4180): the first line names the columns, unless the recipe does (data.column_names), in
    which case it may repeat the names; a quoted value may hold separators and line breaks.

    usual: the name of the separator by which such files' names are known. A line `sep=;`, as Excel reads it, comes
    before the names.
    """

    counts = "line"
    has_own_paths = True
    ways = ("data.separator", "data.encoding")
    usual = "comma"

    def separator(self, path: Path, limits: Limits, usual: str | None = None) -> str:
        """The name of a file's separator: as the recipe says, or as it is found beside the `usual` one."""
        usual = usual or self.usual
        what, find = f"separator: {limits.encoding} {usual}", partial(_found_separator, limits.encoding, usual)
        return limits.separator or contents.value(path, what, find)

    def found(self, path, limits):
        separator = self.separator(path, limits)
        is_usual = separator in (limits.separator, self.usual)
        return super().found(path, limits) | ({} if is_usual else {"separator": separator})

    def like(self, path, limits, other):
        limits = super().like(path, limits, other)
        separator = other.separator and self.separator(path, limits, other.separator)
        return replace(limits, separator=separator, column_names=other.column_names)

    def rows(self, field, path, columns, limits):
        delimiter = SEPARATORS[self.separator(path, limits)]
        with open_file(path, limits.encoding) as stream:
            lines = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
            parts = iter(partial(self._part, lines, limits.document_bytes), "")
            table = csv.reader(parts, delimiter=delimiter, strict=True)
            names, line = limits.column_names, 1
            try:
                for values in table:
                    is_sep = line == 1 and delimiter.join(values).lower() == f"sep={delimiter}"
                    if not values or is_sep or values == names:
                        pass
                    elif names is None:
                        names = values
                        check_names_of_columns(names, columns, f"{field}: {path}, line {line}")
                    elif len(values) != len(names):
                        holds = f"holds {len(values)} instead of {len(names)} values"
                        way_out = "a value with a separator in it needs quotes."
                        yield line, UserError(f"{field}: {path}, line {line} {holds}; {way_out}")
                    elif delimiter == "\t" and _are_several_rows(values):
                        goes_on = f"begins a row that its quotation marks end in line {table.line_num}, but by their "
                        goes_on += "tabs each of these lines is a row"
                        way_out = f"{QUOTES}; a row that has tabs and line ends in a value is read from a .csv"
                        yield line, UserError(f"{field}: {path}, line {line} {goes_on}; {way_out}")
                    else:
                        yield line, dict(zip(names, values)) if is_unicode("".join(values)) else "non_utf8"
                    line = table.line_num + 1
            except csv.Error as error:
                reason = first_line(error).rstrip(".")
                way_out = f"; {QUOTES}" if "after '" in reason or "unexpected end" in reason else "."
                raise UserError(f"{field}: {path}, from line {line} on, is not a table ({reason}){way_out}") from None

    @staticmethod
    def _part(lines: io.TextIOWrapper, document_bytes: int) -> str:
        """The next line. A longer one comes in parts, which are reported as broken rows, so it is never held whole."""
        # The limit is one for the whole process: a table that is read in turn with this one may have set another.
        csv.field_size_limit(max(2**17, document_bytes))  # csv's own limit, or more
        return lines.readline(2 * document_bytes + 2**20)


def _found_separator(encoding: str, usual: str, path: Path) -> str:
    """The usual separator, unless by another one more of the first rows have as many values as the names, several."""
    with open_file(path, encoding) as stream:
        text = stream.read(_SAMPLE).decode("utf-8", "replace")
        is_whole = not stream.read(1)
    said = [name for name, sign in SEPARATORS.items() if text[:6].strip('"').lower().startswith(f"sep={sign}")]
    shares = {name: _share_alike(text, sign, is_whole) for name, sign in SEPARATORS.items()}
    others = [name for name, share in shares.items() if share > max(1 / 2, shares[usual])]
    return said[0] if said else max(others, key=shares.__getitem__, default=usual)


def _share_alike(text: str, sign: str, is_whole: bool) -> float:
    """The share of a table's first rows that have as many values as there are names; 0 for one column."""
    table, sizes = csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True), []
    try:
        sizes = [len(values) for values in islice(filter(None, table), _FIRST + 1)]
    except csv.Error:
        return 0.0  # quotation marks are not as they would be
    rows = sizes[1:] if is_whole or len(sizes) > _FIRST else sizes[1:-1]  # the last one is cut
    return rows.count(sizes[0]) / len(rows) if rows and sizes[0] > 1 else 0.0


def _are_several_rows(values: list[str]) -> bool:
    """Whether each line of a row would be a whole row if quotation marks were letters, as in many .tsv files."""
    lines = _LINE_END.split("\t".join(values))
    return len(lines) > 1 < len(values) and all(line.count("\t") == len(values) - 1 for line in lines)


def check_names_of_columns(names: list[str], columns: list[str], where: str) -> None:
    """Raise UserError for names of columns in another encoding, and for one that is there twice."""
    if not is_unicode("".join(names)):
        raise UserError(f"{where}: not in its encoding; {WAY_OUT}")
    twice = next((column for column in columns if names.count(column) > 1), None)
    if twice is not None:
        raise UserError(f"{where} names {names.count(twice)} columns {twice!r}; rename all but one")


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: no byte of it was undecodable (a surrogate by "surrogateescape")."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@register_file_format(".tsv")
class TabSeparated(Separated):
    """A table whose values are usually separated by tabs."""

    usual = "tab"


@register_file_format(".conll")
class Conll(FileFormat):
    """One word with its annotations per line, an empty line after each sentence; columns are separated by tabs, or else
    by spaces. A sentence is a row {"tokens", "tags"}: its first and its last column."""

    counts = "line"

    def rows(self, field, path, columns, limits):
        with open_file(path, limits.encoding) as stream:
            lines = io.TextIOWrapper(stream, "utf-8")
            start, words, size = 1, [], None
            for number, line in enumerate(chain(lines, [""]), start=1):
                line = line.rstrip("\r\n")
                values = self._values(line)
                if any(value.strip() for value in values) and values[0] != NEW_DOCUMENT:
                    start = start if words else number
                    words.append((number, values))
                    size = size or len(values)
                elif words:
                    yield start, self._sentence(words, size, f"{field}: {path}")
                    words = []

    @staticmethod
    def _values(line: str) -> list[str]:
        # Not every white space divides: a no-break space is a part of a word, as in 10 000.
        return line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))

    def unread(self, field, path, columns, limits):
        """Columns between the first and the last one."""
        with open_file(path, limits.encoding) as stream:
            lines = (self._values(line.rstrip("\r\n")) for line in io.TextIOWrapper(stream, "utf-8"))
            first = next((values for values in lines if any(map(str.strip, values)) and values[0] != NEW_DOCUMENT), [])
        return [f"column {number}" for number in range(2, len(first))]

    @staticmethod
    def _sentence(words, size, where) -> dict[str, list[str]] | UserError:
        """The first and the last column of a sentence's lines; an error for a line with more or fewer columns."""
        for number, values in words:
            if len(values) != size or size < 2:
                expected = f"{size} columns" if size > 1 else "two columns or more"
                return UserError(f"{where}, line {number} holds {len(values)} instead of {expected}")
        return {"tokens": [values[0] for _, values in words], "tags": [values[-1] for _, values in words]}


@register_file_format(".parquet")
class Parquet(FileFormat):
    """Apache Parquet."""

    is_compressed = True

    def rows(self, field, path, columns, limits):
        with self._open(field, path) as parquet:
            batches = parquet.iter_batches(batch_size=32, columns=columns)
            yield from enumerate(row for batch in batches for row in batch.to_pylist())

    def columns(self, field, path):
        with self._open(field, path) as parquet:
            return list(self._names(parquet.schema_arrow))

    def _names(self, fields: Iterable, before: str = "") -> Iterator[str]:
        """The names of columns and, joined by dots, of the fields nested in them."""
        for field in fields:
            yield f"{before}{field.name}"
            if pyarrow.types.is_struct(field.type):
                yield from self._names(field.type, f"{before}{field.name}.")

    def class_names(self, field, path, column):
        with self._open(field, path) as parquet:
            features = datasets.Features.from_arrow_schema(parquet.schema_arrow)
        return names_of_classes(features, column)

    @staticmethod
    def _open(field: str, path: Path):
        from pyarrow.parquet import ParquetFile

        try:
            return ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"{field}: {path} is not a Parquet file ({first_line(error).rstrip('.')}).") from None


@register_file_format(".xlsx", ".xlsm")
class Excel(FileFormat):
    """A sheet of a workbook, of which a row without a value is none; names of columns and cells as in text."""

    is_compressed = True
    has_own_paths = True
    ways = ("data.sheet",)

    def rows(self, field, path, columns, limits):
        names = limits.column_names and [*limits.column_names]
        with self._open(field, path) as book:
            sheets = {sheet.title: sheet for sheet in book.worksheets}
            title = limits.sheet or contents.value(path, "sheets by rows", self._sheets)[0]
            if title not in sheets:
                raise UserError(f"data.sheet={title!r}: {path} has no such sheet{did_you_mean(title, sheets)}")
            sheets[title].reset_dimensions()  # those that other programs write are often wrong
            for number, cells in enumerate(sheets[title].iter_rows(values_only=True), start=1):
                values = [from_sheet(value) for value in cells]
                if values.count(None) == len(values) or values == names:
                    continue
                if names is None:
                    names = [value or "" for value in values]
                    check_names_of_columns(names, columns, f"{field}: {path}, row {number}")
                else:
                    names += [f"column {at + 1}" for at in range(len(names), len(values))]
                    yield number, dict(zip_longest(names, values))

    def found(self, path, limits):
        names = contents.value(path, "sheets by rows", self._sheets)
        return {"sheet": names[0]} if limits.sheet is None and len(names) > 1 else {}

    def like(self, path, limits, other):
        is_there = other.sheet in contents.value(path, "sheets by rows", self._sheets)
        return replace(limits, column_names=other.column_names, sheet=other.sheet if is_there else limits.sheet)

    def _sheets(self, path: Path) -> list[str]:
        """The names of the sheets, those first that have a row below the names."""
        with self._open("data.files", path) as book:
            rows = {sheet.title: filter(any, sheet.iter_rows(values_only=True)) for sheet in book.worksheets}
            return sorted(rows, key=lambda title: len(list(islice(rows[title], 2))) < 2)

    @staticmethod
    @contextmanager
    def _open(field: str, path: Path) -> Iterator[Any]:
        need_package(f"{field}: {path}", "openpyxl", "excel")
        import openpyxl

        try:
            with warnings.catch_warnings(action="ignore"):  # of styles and rules, which are not read
                book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{field}: {path} is not an Excel file ({first_line(error).rstrip('.')}).") from None
        with closing(book):
            yield book
