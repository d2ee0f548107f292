"""Files that are no tables: plain text, with the documents in it, and files that are one row each, as images are."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..storage.packed_files import unpacked_name
from .documents import UTF8, Limits
from .file_formats import FILE_FORMATS, FileFormat
from .files import bounded_lines, open_file

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


class PlainText(FileFormat):
    """The texts of a plain file, each a row with one column.

    document: what one text is: the file, a line, or a paragraph (lines up to and including the blank ones that follow).
    Line breaks are kept: the texts of a file put together are the file. A text is numbered by its first line; one that
    is too long is not held in memory.
    """

    def __init__(self, document: str = "file"):
        self.document = document

    def check_kind(self, field: str, path: Path, pattern: str) -> None:
        suffix = suffix_of(path.name)
        if suffix in ("", *TEXT) or re.fullmatch(r"\.\d+", suffix):
            return
        if suffix not in CODE_AND_MARKUP:
            known, code = ", ".join(sorted(FILE_FORMATS)), ", ".join(CODE_AND_MARKUP)
            raise UserError(
                f"{field}: {path} ends in {suffix}, which is no known format; known: {known}, for plain text .txt "
                f"(rename it if it is that), and of code and markup {code}."
            )
        asked_for = suffix_of(Path(pattern).name.rstrip("*")).strip(".?*")
        if not asked_for:
            raise UserError(
                f"{field}={pattern!r} matches {path}, too; name the files that are meant by their suffixes, such as "
                f"'*{suffix}' or '*.txt'."
            )

    def unread(self, field: str, path: Path, columns: list[str], limits: Limits) -> None:
        """A text has no columns."""

    def rows(
        self, field: str, path: Path, columns: list[str], limits: Limits
    ) -> Iterator[tuple[int | None, dict[str, Any] | str]]:
        parts: list[bytes] = []
        start, size, fault, has_text, ended = 1, 0, None, False, False
        with open_file(path, limits.encoding, refuses=self.document != "file") as stream:
            for number, line in enumerate(bounded_lines(stream, limits.line_bytes), start=1):
                is_blank = line is not None and not line.strip()
                # A paragraph ends with the blank lines after it.
                if (self.document == "line" and number > 1) or (ended and not is_blank):
                    yield start, _row(parts, fault, columns)
                    parts, start, size, fault, has_text, ended = [], number, 0, None, False, False
                ended = ended or (self.document == "paragraph" and is_blank and (has_text or fault is not None))
                has_text = has_text or not is_blank
                size += len(line or b"")
                if line is None:
                    fault = fault or "gigantic_line"
                elif size > limits.document_bytes:
                    fault = fault or "too_long"
                if fault:
                    parts = []
                else:
                    parts.append(line)
        if parts or fault or self.document == "file":
            yield None if self.document == "file" else start, _row(parts, fault, columns)


def no_format(field: str, path: Path, others: Sequence[str] = ()) -> UserError:
    known = ", ".join([*FILE_FORMATS, *others])
    return UserError(f"{field}: {path} is of no format that rows are read from; known: {known}")


def _row(parts: list[bytes], fault: str | None, columns: list[str]) -> dict[str, str] | str:
    """{the only column: text}, or the reason to leave it out."""
    try:
        return fault or {columns[0]: b"".join(parts).decode()}
    except UnicodeDecodeError:
        return "non_utf8"


def suffix_of(name: str) -> str:
    return Path(unpacked_name(name)).suffix


IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def is_image_file(path: Path) -> bool:
    return path.name.lower().endswith(IMAGES)


class WholeFile(FileFormat):
    """named: {"image_field", "text_field", "label_field": the column of an image's path, of a text, of a class}."""

    def __init__(self, named: dict[str, str]):
        self.named = named

    def check_kind(self, field: str, path: Path, pattern: str) -> None:
        texts = TEXT if "label_field" in self.named else (*TEXT, ".md")  # beside labelled texts a README.md is none
        is_image = "image_field" in self.named and is_image_file(path)
        if not is_image and suffix_of(path.name) not in texts:
            raise no_format(field, path, texts)

    def encoding(self, path):
        return UTF8 if is_image_file(path) else super().encoding(path)

    def rows(self, field, path, columns, limits):
        row: dict | str = {"image_field": str(path)}
        if not is_image_file(path):
            [(_, row)] = PlainText().rows(field, path, ["text_field"], limits)
        if isinstance(row, dict):
            row |= {"label_field": path.parent.name}
            row = {column: row[name] for name, column in self.named.items() if name in row}
        yield None, row
