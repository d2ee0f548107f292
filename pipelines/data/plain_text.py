"""Which files are read as plain text. Standard library only.

A name without a suffix, or with a number for one, and .txt are text wherever they are found. Source code and markup are
text where a pattern asks for them (`*.py`, `notes.md`): a README.md that `texts/*` matches beside the texts is hardly
meant.
"""

import re
from pathlib import Path

from ..errors import UserError
from ..storage.packed_files import unpacked_name

TEXT = (".txt", ".text")
_CODE_AND_MARKUP = """
.adoc .asm .bash .bat .bib .c .cc .cfg .clj .cmake .cpp .cs .css .cu .cxx .dart .diff .el .erl .ex .f90 .go .h .hh .hpp
.hs .htm .html .ini .java .jl .js .jsx .kt .lisp .log .lua .m .md .ml .org .patch .php .pl .pm .proto .ps1 .py .pyi .pyx
.r .raw .rb .rs .rst .scala .scm .scss .sh .sql .srt .sv .swift .tcl .tex .tokens .toml .ts .tsx .v .vim .vue .xml .yaml
.yml .zig
"""
CODE_AND_MARKUP = tuple(_CODE_AND_MARKUP.split())


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
