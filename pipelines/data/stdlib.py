"""The built-in corpus: sources and documentation of the Python standard library. Real text on every machine."""

import hashlib
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..plugins import register_source
from ..storage.contents import content_hash, contents
from .documents import Document, Limits, Skipped, Source

# Installed packages are not the standard library; its tests are long tables of literals rather than code to learn from.
_EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_TOPICS = "pydoc_data/topics.py"
# A line that begins with a string or a number: a row of a table, seldom code. A docstring's opening quotes are no row.
_TABLE_ROW = re.compile(r"""^[ \t]*[({\[]*[bru]?(?!'''|\"\"\")['"0-9-].*$""", re.MULTILINE)


@register_source("stdlib")
class StdlibSource(Source):
    """Every .py file of the standard library in order of its path, then every topic of `help()` by name.

    Validation documents are chosen by name, so the split of one file does not depend on which other files exist.
    """

    name = "stdlib"
    splits_by_name = True

    def __init__(self, limits: Limits, where: str = "data"):
        self.where = where
        self.limits = limits
        self.root = Path(sysconfig.get_paths()["stdlib"])
        self.files = [name for name in sorted(_python_files(self.root)) if self.includes(name)]

    def items(self) -> Iterator[Document | Skipped]:
        for relative in self.files:
            try:
                text = (self.root / relative).read_bytes().decode()
            except UnicodeDecodeError:
                yield Skipped("non_utf8", relative)
                continue
            yield self.limits.checked(text, relative)
        for topic, text in self._topics():
            yield self.limits.checked(text, f"topics/{topic}")

    def includes(self, relative: str) -> bool:
        """Whether this file of the library belongs to the corpus."""
        return True

    @staticmethod
    def _topics() -> list[tuple[str, str]]:
        return sorted(importlib.import_module("pydoc_data.topics").topics.items())

    def identity(self) -> Any:
        digest = hashlib.sha256()
        for relative in self.files:
            digest.update(f"{relative}\n".encode() + bytes.fromhex(content_hash(self.root / relative)))
        for topic, text in self._topics():
            digest.update(f"{topic}\n{text}".encode())
        return {"source": self.name, "python": sys.version.split()[0], "sha256": digest.hexdigest()}

    def size_hint(self) -> int:
        files = sum((self.root / relative).stat().st_size for relative in self.files)
        return files + sum(len(text) for _, text in self._topics())


@register_source("stdlib_code")
class StdlibCodeSource(StdlibSource):
    """The same without tables: character encodings, Unicode data, locale names, build settings.

    They are a fifth of the bytes. A file is left out where more than half of its text is rows of literals; in Python
    3.11 to 3.13 hardly a file lies near the half (tables have 0.6 to 1.0, code has below 0.45).
    """

    name = "stdlib_code"

    def includes(self, relative: str) -> bool:

        def share_in(path: Path) -> float:
            return table_share(path.read_bytes().decode(errors="replace"))

        # The topics are documents of their own; their file would repeat them as one long string each.
        return relative != _TOPICS and contents.value(self.root / relative, "table share", share_in) <= 0.5


def table_share(text: str) -> float:
    """The share of a Python file's characters that stand on rows of a table."""
    return sum(len(row) + 1 for row in _TABLE_ROW.findall(text)) / max(len(text), 1)


def _python_files(root: Path) -> Iterator[str]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _EXCLUDED and not name.startswith("config-")]
        for name in names:
            if name.endswith(".py"):
                yield (Path(folder) / name).relative_to(root).as_posix()
