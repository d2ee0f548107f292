"""Local files as documents: plain text, and a column of any format with rows, also compressed."""

import copy
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..storage.checksums import contents
from ..storage.packed_files import packing_of, unpacked_name
from .cells import cell, cell_names
from .documents import Document, Limits, Skipped, Source, counted_from, text_document
from .file_formats import FILE_FORMATS, FileFormat, check_opens, encoding_notes, encodings_in, format_of
from .files import bounded_lines, file_identities, name_of_files, open_file, readable
from .patterns import find_files

# Files without a suffix, or with a number for one, and .txt are always text. Source code and markup are text only if a
# pattern names their suffix (`*.py`, `notes.md`): a README.md that `texts/*` matches beside the texts is hardly meant.
TEXT = (".txt", ".text")
_CODE_AND_MARKUP = """
.adoc .asm .bash .bat .bib .c .cc .cfg .clj .cmake .cpp .cs .css .cu .cxx .dart .diff .el .erl .ex .f90 .go .h .hh .hpp
.hs .htm .html .ini .java .jl .js .jsx .kt .lisp .log .lua .m .md .ml .org .patch .php .pl .pm .proto .ps1 .py .pyi .pyx
.r .raw .rb .rs .rst .scala .scm .scss .sh .sql .srt .sv .swift .tcl .tex .tokens .toml .ts .tsx .v .vim .vue .xml .yaml
.yml .zig
"""
CODE_AND_MARKUP = tuple(_CODE_AND_MARKUP.split())


class FileSource(Source):
    """Documents of local files, in the order of the patterns and by path within one pattern.

    patterns: paths and globs (`~` allowed, `**` crosses folders); a file that several match is read once.
    text_field: key or column that holds the text, in files of a format with rows; `doc.body`: a key within a key.
    document: what one document is in a plain text file: the file, a line, or a paragraph (lines up to and including the
        blank ones that follow). Line breaks are kept: the documents of a file put together are the file.
    without: real paths that globs leave out: files of the other splits.
    Raises UserError where a pattern matches nothing or a file cannot be read.
    """

    has_encoding = True

    def __init__(
        self,
        patterns: str | list[str],
        limits: Limits,
        *,
        text_field: str = "text",
        document: str = "file",
        where: str = "data",
        key: str = "files",
        without: Collection[str] = (),
    ):
        self.where, self.field = where, f"{where}.{key}"
        self.limits, self.text_field, self.document = limits, text_field, document
        files = find_files(self.field, patterns, without)
        self.paths = list(files)
        self.name = name_of_files(self.paths)
        for path, pattern in files.items():
            if format_of(path) is None:
                check_is_text(self.field, path, pattern, list(FILE_FORMATS))
            contents.value(path, f"opens: {text_field} {limits.encoding}", self._try_opening)

    def items_from(self, place: list | None = None) -> Iterator[tuple[Document | Skipped, list]]:
        """place: [number of the file, items read of it]; the files before it are not read."""
        file, done = place or (0, 0)
        for number, path in enumerate(self.paths[file:], start=file):
            with readable(self.field, path):
                for item, after in counted_from(done, self._read(path)):
                    yield item, [number, after]
            done = 0

    def parts(self, size: int) -> list["FileSource"]:
        """Groups of consecutive files, none of them cut."""
        groups, total = [[]], 0
        for path in self.paths:
            if total >= size:
                groups, total = [*groups, []], 0
            groups[-1].append(path)
            total += path.stat().st_size
        parts = [copy.copy(self) for _ in groups]
        for part, paths in zip(parts, groups):
            part.paths = paths
        return parts

    def identity(self) -> Any:
        found = encodings_in(self.field, self.paths, self.limits)
        return {
            "files": file_identities(self.field, self.paths),
            "text_field": self.text_field,
            "document": self.document,
            "limits": self.limits.identity(),
        } | ({"encodings": [*found.values()]} if found else {})

    def notes(self) -> list[str]:
        return encoding_notes(self.field, self.paths, self.limits)

    def size_hint(self) -> int | None:
        if any(packing_of(path) or getattr(format_of(path), "is_compressed", False) for path in self.paths):
            return None  # the unpacked size is not known
        return sum(path.stat().st_size for path in self.paths)

    def _read(self, path: Path) -> Iterable[Document | Skipped]:
        file_format = format_of(path)
        return self._plain(path) if file_format is None else self._rows(path, file_format)

    def _plain(self, path: Path) -> Iterator[Document | Skipped]:
        """The whole file, its lines or its paragraphs; one that is too long is not held in memory."""
        parts: list[bytes] = []
        start, size, fault, has_text, ended = 1, 0, None, False, False
        with open_file(path, self.limits.encoding, refuses=self.document != "file") as stream:
            for number, line in enumerate(bounded_lines(stream, self.limits.line_bytes), start=1):
                is_blank = line is not None and not line.strip()
                # A paragraph ends with the blank lines after it.
                if (self.document == "line" and number > 1) or (ended and not is_blank):
                    yield self._document(parts, fault, f"{path.name}:{start}")
                    parts, start, size, fault, has_text, ended = [], number, 0, None, False, False
                ended = ended or (self.document == "paragraph" and is_blank and (has_text or fault is not None))
                has_text = has_text or not is_blank
                size += len(line or b"")
                if line is None:
                    fault = fault or "gigantic_line"
                elif size > self.limits.document_bytes:
                    fault = fault or "too_long"
                if fault:
                    parts = []
                else:
                    parts.append(line)
        if parts or fault or self.document == "file":
            yield self._document(parts, fault, path.name if self.document == "file" else f"{path.name}:{start}")

    def _document(self, parts: list[bytes], fault: str | None, source: str) -> Document | Skipped:
        try:
            return Skipped(fault, source) if fault else self.limits.checked(b"".join(parts).decode(), source)
        except UnicodeDecodeError:
            return Skipped("non_utf8", source)

    def _rows(self, path: Path, file_format: FileFormat) -> Iterator[Document | Skipped]:
        field = f"{self.where}.text_field={self.text_field!r}"
        for number, row in file_format.rows(self.field, path, [self.text_field], self.limits):
            source = f"{path.name}:{number}"
            if isinstance(row, str):
                yield Skipped(row, source)
                continue
            if isinstance(row, UserError):
                raise row
            try:
                text = cell(row, self.text_field)
            except KeyError:
                hint = did_you_mean(self.text_field, cell_names(row))
                raise UserError(f"{field}: no such key in {path}, {file_format.counts} {number}{hint}") from None
            yield text_document(text, source, self.limits, field)

    def _try_opening(self, path: Path) -> None:
        check_opens(self.field, path)
        file_format = format_of(path)
        if file_format is not None:
            with readable(self.field, path):
                columns = file_format.columns(self.field, path)
            if columns is not None and self.text_field not in columns:
                hint = did_you_mean(self.text_field, columns)
                raise UserError(f"{self.where}.text_field={self.text_field!r}: no such column in {path}{hint}")
            if columns is None:  # read the first row: else a fault is found after hours of tokenising
                with readable(self.field, path):
                    next(self._rows(path, file_format), None)


def check_is_text(field: str, path: Path, pattern: str, formats: list[str]) -> None:
    """Raise UserError, beginning with `field`, where `path`, which `pattern` matches, is not read as text."""
    suffix = _suffix(path.name)
    if suffix in ("", *TEXT) or re.fullmatch(r"\.\d+", suffix):
        return
    if suffix not in CODE_AND_MARKUP:
        raise UserError(
            f"{field}: {path} ends in {suffix}, which is no known format; known: {', '.join(sorted(formats))}, for "
            f"plain text .txt (rename it if it is that), and of code and markup {', '.join(CODE_AND_MARKUP)}."
        )
    asked_for = _suffix(Path(pattern).name.rstrip("*")).strip(".?*")
    if not asked_for:
        raise UserError(
            f"{field}={pattern!r} matches {path}, too; name the files that are meant by their suffixes, such as "
            f"'*{suffix}' or '*.txt'."
        )


def _suffix(name: str) -> str:
    return Path(unpacked_name(name)).suffix
