"""Local files as documents: plain text, JSON lines and Parquet, also compressed with gzip."""

import difflib
import glob
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from ..errors import UserError, did_you_mean
from .documents import Document, Limits, Skipped, Source

_BOM = b"\xef\xbb\xbf"


class FileSource(Source):
    """Documents of local files, in the order of the patterns and by path within one pattern.

    patterns: paths and globs (`~` allowed, `**` crosses folders); a file that several match is read once.
    text_field: key (.jsonl) or column (.parquet) that holds the text.
    document: what one document is in a plain text file: the file, a line, or a paragraph (lines up to and including the
        blank ones that follow). Line breaks are kept: the documents of a file put together are the file.
    Raises UserError where a pattern matches nothing or a file cannot be read.
    """

    def __init__(
        self,
        patterns: str | list[str],
        limits: Limits,
        *,
        text_field: str = "text",
        document: str = "file",
        where: str = "data",
        key: str = "files",
    ):
        self.where, self.field = where, f"{where}.{key}"
        self.limits, self.text_field, self.document = limits, text_field, document
        self.paths = find_files(self.field, [patterns] if isinstance(patterns, str) else patterns)
        self.name = self.paths[0].name + (f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else "")
        for path in self.paths:
            self._try_opening(path)

    def items(self) -> Iterator[Document | Skipped]:
        for path in self.paths:
            with readable(self.field, path):
                yield from self._read(path)

    def identity(self) -> Any:
        files = []
        for path in self.paths:
            with readable(self.field, path):
                state = path.stat()
                files.append([path.name, state.st_size, content_hash(str(path), state.st_size, state.st_mtime_ns)])
        return {"files": files, "text_field": self.text_field, "document": self.document, "limits": vars(self.limits)}

    def size_hint(self) -> int | None:
        if any(path.suffix.lower() in (".gz", ".parquet") for path in self.paths):
            return None  # what they unpack to is not known
        return sum(path.stat().st_size for path in self.paths)

    def _read(self, path: Path) -> Iterable[Document | Skipped]:
        kind = file_kind(path)
        if kind == "parquet":
            return self._parquet(path)
        if kind == "jsonl":
            return self._json_lines(path)
        return {"file": self._whole, "line": self._lines, "paragraph": self._paragraphs}[self.document](path)

    def _whole(self, path: Path) -> Iterator[Document | Skipped]:
        parts, size = [], 0
        with open_file(path) as stream:
            while line := stream.readline(self.limits.line_bytes + 2):
                parts.append(line)
                size += len(line)
                # Found while reading, so that neither costs more memory than the limit.
                if _length(line) > self.limits.line_bytes:
                    yield Skipped("gigantic_line", path.name)
                    return
                if size > self.limits.document_bytes:
                    yield Skipped("too_long", path.name)
                    return
        yield self._decoded(b"".join(parts), path.name)

    def _lines(self, path: Path) -> Iterator[Document | Skipped]:
        with open_file(path) as stream:
            for number, line in enumerate(bounded_lines(stream, self.limits.line_bytes), start=1):
                source = f"{path.name}:{number}"
                yield Skipped("gigantic_line", source) if line is None else self._decoded(line, source)

    def _paragraphs(self, path: Path) -> Iterator[Document | Skipped]:
        with open_file(path) as stream:
            parts: list[bytes] = []
            start, size, fault, ended = 1, 0, None, False
            for number, line in enumerate(bounded_lines(stream, self.limits.line_bytes), start=1):
                blank = line is not None and not line.strip()
                if ended and not blank:  # the first line of the next paragraph
                    yield self._paragraph(parts, fault, f"{path.name}:{start}")
                    parts, start, size, fault, ended = [], number, 0, None, False
                ended = ended or (blank and (fault is not None or any(part.strip() for part in parts)))
                size += len(line or b"")
                if line is None:
                    fault = "gigantic_line"
                elif size > self.limits.document_bytes:
                    fault = fault or "too_long"
                if fault:
                    parts = []
                else:
                    parts.append(line)
            if parts or fault:
                yield self._paragraph(parts, fault, f"{path.name}:{start}")

    def _paragraph(self, parts: list[bytes], fault: str | None, source: str) -> Document | Skipped:
        return Skipped(fault, source) if fault else self._decoded(b"".join(parts), source)

    def _json_lines(self, path: Path) -> Iterator[Document | Skipped]:
        # A line of JSON may be longer than its text: escapes are up to six times as long, and there are other keys.
        longest = 6 * self.limits.document_bytes + 2**20
        with open_file(path) as stream:
            for number, line in enumerate(bounded_lines(stream, longest), start=1):
                source = f"{path.name}:{number}"
                if line is None:
                    yield Skipped("too_long", source)
                elif line.strip():
                    yield self._json_document(line, path, number, source)

    def _json_document(self, line: bytes, path: Path, number: int, source: str) -> Document | Skipped:
        try:
            row = json_object(line, self.field, path, number)
        except UnicodeDecodeError:
            return Skipped("non_utf8", source)
        if self.text_field not in row:
            hint = did_you_mean(self.text_field, row)
            raise UserError(f"{self.where}.text_field={self.text_field!r}: no such key in {path}, line {number}{hint}")
        return text_document(row[self.text_field], source, self.limits, f"{self.where}.text_field={self.text_field!r}")

    def _parquet(self, path: Path) -> Iterator[Document | Skipped]:
        row = 0
        with self._parquet_file(path) as parquet:
            for batch in parquet.iter_batches(batch_size=512, columns=[self.text_field]):
                for cell in batch.column(0):
                    source = f"{path.name}:{row}"
                    row += 1
                    try:
                        text = cell.as_py()
                    except UnicodeDecodeError:
                        yield Skipped("non_utf8", source)
                        continue
                    yield text_document(text, source, self.limits, f"{self.where}.text_field={self.text_field!r}")

    def _parquet_file(self, path: Path):
        parquet = parquet_file(self.field, path)
        columns = parquet.schema_arrow.names
        if self.text_field not in columns:
            parquet.close()
            hint = did_you_mean(self.text_field, columns)
            raise UserError(f"{self.where}.text_field={self.text_field!r}: no such column in {path}{hint}")
        return parquet

    def _decoded(self, text: bytes, source: str) -> Document | Skipped:
        try:
            return self.limits.checked(text.decode(), source)
        except UnicodeDecodeError:
            return Skipped("non_utf8", source)

    def _try_opening(self, path: Path) -> None:
        check_opens(self.field, path)
        if file_kind(path) == "parquet":
            with readable(self.field, path):
                self._parquet_file(path).close()


def check_opens(field: str, path: Path) -> None:
    """Raise UserError, beginning with the recipe's `field`, where `path` cannot be opened."""
    with readable(field, path):
        if path.name.lower().endswith(".parquet.gz"):
            raise UserError(f"{field}: {path}: Parquet is compressed inside; gunzip the file first.")
        with open_file(path):
            pass


@contextmanager
def readable(field: str, path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read into a UserError that begins with the recipe's `field`."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{field}: {path} is not a complete gzip file ({_first_line(error)}).") from None
    except OSError as error:
        raise UserError(f"{field}: {path} cannot be read ({error.strerror or _first_line(error)}).") from None


def json_object(line: bytes, field: str, path: Path, number: int) -> dict[str, Any]:
    """The JSON object of one line. Raises UnicodeDecodeError; UserError for anything else that is no object."""
    try:
        row = json.loads(line.decode())
    except json.JSONDecodeError as error:
        raise UserError(f"{field}: {path}, line {number}: not valid JSON ({error.msg}).") from None
    if not isinstance(row, dict):
        raise UserError(f"{field}: {path}, line {number}: not a JSON object but {type(row).__name__}.")
    return row


def parquet_file(field: str, path: Path):
    """The open pyarrow.parquet.ParquetFile; raises UserError where it is none."""
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{field}: {path} is not a Parquet file ({_first_line(error)}).") from None


def text_document(value: Any, source: str, limits: Limits, field: str) -> Document | Skipped:
    """Check one cell of a table: nothing counts as empty, anything but text is a UserError that begins with `field`."""
    if value is None:
        return Skipped("empty", source)
    if not isinstance(value, str):
        raise UserError(f"{field}: {source} holds {type(value).__name__}, not text.")
    return limits.checked(value, source)


def file_kind(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return "parquet"
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "text"


def open_file(path: Path) -> IO[bytes]:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    stream = opener(path, "rb")
    try:
        if stream.peek(3)[:3] == _BOM:  # a mark of some editors, not text, and JSON forbids it
            stream.read(3)
    except BaseException:
        stream.close()
        raise
    return stream


def _length(line: bytes) -> int:
    """Bytes of a line without its line break."""
    return len(line) - line.endswith(b"\n")


def bounded_lines(stream: IO[bytes], longest: int) -> Iterator[bytes | None]:
    """The lines with their line breaks; None for one of more than `longest` bytes, which is never held in memory."""
    while line := stream.readline(longest + 1):
        if _length(line) <= longest:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(2**20)
        yield None


def find_files(field: str, patterns: list[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        if os.path.isdir(expanded):
            raise UserError(f"{field}={pattern!r} is a folder; {os.path.join(pattern, '*')!r} means the files in it.")
        if os.path.exists(expanded):  # before globbing: a file may really be called `a[1].txt`
            found[Path(expanded)] = None
            continue
        if not glob.has_magic(expanded):
            raise UserError(f"{field}={pattern!r}: no such file{_nearest_file(Path(expanded))}.")
        matches = [Path(match) for match in sorted(glob.glob(expanded, recursive=True)) if os.path.isfile(match)]
        if not matches:
            raise UserError(f"{field}={pattern!r} matches no file.")
        found.update(dict.fromkeys(matches))
    return list(found)


def _nearest_file(path: Path) -> str:
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except OSError:
        return f" (there is no folder {str(path.parent)!r})"
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


@lru_cache(maxsize=4096)
def content_hash(path: str, size: int, mtime_ns: int) -> str:
    """SHA-256 of a file's bytes; size and time of change are there so that a changed file is read again."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
