"""Local files as rows: those of tables of any format, also compressed, and one for each text or image."""

import copy
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..storage.contents import contents
from ..storage.packed_files import packing_of
from .account import Account
from .documents import Limits, counted_from
from .file_formats import FileFormat, check_opens, format_of
from .files import WAY_OUT, file_identities, find_files, name_of_files, readable
from .plain_text import PlainText, WholeFile, no_format
from .reader import Reader, Row, View

# What is found of a file: in words, and what to do where it is wrong.
FOUND = {
    "encoding": ("{}, not UTF-8", WAY_OUT),
    "separator": ("values separated by {}s", "set data.separator"),
    "sheet": ("the sheet {!r}, its first with rows", "set data.sheet"),
}


class FileReader(Reader):
    """Rows of local files, in the order of the patterns and by path within one pattern.

    patterns: paths and globs (`~` allowed, `**` crosses folders); a file that several match is read once. without: real
    paths that globs leave out: files of the other splits. image_column: the one whose paths are relative to a table's
    folder, if its format has_own_paths.
    Raises UserError where a pattern matches nothing, and for a file that cannot be read, is of another kind or lacks a
    column.
    """

    has_encoding = True

    def __init__(self, field: str, patterns: str | list[str], view: View, without: Collection[str] = ()):
        super().__init__(view)
        self.field, self.image_column = field, view.columns.get("image_field")
        self._patterns = find_files(field, patterns, without)
        self.paths = list(self._patterns)
        self.name = name_of_files(self.paths) if self.paths else ""
        self.check()

    def check(self) -> None:
        other = self.view.other
        for path in self.paths:
            if format_of(path) is None and other is None:
                raise no_format(self.field, path)
            if format_of(path) is None:
                other.check_kind(self.field, path, self._patterns[path])
            self.check_opens(path)

    def check_opens(self, path: Path) -> None:
        seen = f"{type(self.view).__name__} {self.columns} {self.limits.of_files()}"
        contents.value(path, f"opens: {seen}", self._opens)

    def _opens(self, path: Path) -> None:
        field, file_format = self.field, format_of(path)
        check_opens(field, path)
        if file_format is None:
            return
        with readable(field, path):
            columns = file_format.columns(field, path)
            if columns is None:
                try:
                    self.view.check_some(self.rows_in(path), field)
                except UserError as error:
                    raise UserError(f"{str(error).rstrip('.')}{self.none_usable()}") from None
        if columns is not None:
            self.view.check_columns(columns, str(path))

    def rows_from(self, place: list | None = None) -> Iterator[tuple[Row, list]]:
        """place: [number of the file, rows read of it]; the files before it are not read."""
        file, done = place or (0, 0)
        for number, path in enumerate(self.paths[file:], start=file):
            with readable(self.field, path):
                for row, after in counted_from(done, self.rows_in(path)):
                    yield row, [number, after]
            done = 0

    def rows_in(self, path: Path) -> Iterator[Row]:
        kind = self.kind_of(path)
        has_own_paths = self.image_column is not None and kind.has_own_paths
        names = names_in(self.field, path, self.columns) if self.view.names_classes else {}
        file, name, counts = str(path), path.name, kind.counts
        asked = self.field, path, self.columns_in(path, kind), self.limits_of(path)
        unread = kind.unread(*asked)
        for number, values in kind.rows(*asked):
            place, source = (file, name) if number is None else (f"{file}, {counts} {number}", f"{name}:{number}")
            if has_own_paths and isinstance(values, dict):
                values = self._with_own_path(values, path)
            yield Row(place, source, values, names, unread)

    def kind_of(self, path: Path) -> FileFormat:
        """How a file is read."""
        return format_of(path) or self.view.other

    def _with_own_path(self, values: dict[str, Any], path: Path) -> dict[str, Any]:
        image = values.get(self.image_column)
        is_path = isinstance(image, str) and image.strip()
        return values | {self.image_column: str(path.parent / os.path.expanduser(image))} if is_path else values

    def columns_in(self, path: Path, kind: FileFormat) -> list[str]:
        """The columns of a file that are read."""
        return list(dict.fromkeys(self.columns.values()))

    def all_columns(self) -> list[str]:
        names = self.kind_of(self.paths[0]).columns(self.field, self.paths[0]) or []
        return [name for name in names if name.rpartition(".")[0] not in names]

    def limits_of(self, path: Path) -> Limits:
        return self.limits

    def parts(self, size: int) -> list["FileReader"]:
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

    def size_hint(self) -> int | None:
        if any(packing_of(path) or getattr(format_of(path), "is_compressed", False) for path in self.paths):
            return None  # the unpacked size is not known
        return sum(path.stat().st_size for path in self.paths)

    def identity(self) -> Any:
        identity = {"files": file_identities(self.field, self.paths)} | super().identity()
        if isinstance(self.view.other, WholeFile) and any(format_of(path) is None for path in self.paths):
            identity |= {"folders": [path.parent.name for path in self.paths]}
        if isinstance(self.view.other, PlainText):
            found = [found["encoding"] for path in self.paths if "encoding" in (found := self.found_in(path))]
            identity |= {"document": self.view.other.document} | ({"encodings": found} if found else {})
        return identity

    def found_in(self, path: Path) -> dict[str, str]:
        """{setting: value} of how a file is read, where neither the recipe nor its format says it."""
        with readable(self.field, path):
            return self.kind_of(path).found(path, self.limits_of(path))

    def account(self) -> Account:
        account = Account()
        for path in self.paths:
            found = self.found_in(path)
            if found:
                words = ", ".join(FOUND[name][0].format(value) for name, value in found.items())
                ways_out = " and ".join(FOUND[name][1] for name in found)
                account.read_as("file", path.name, words, hint=f"if that is wrong, {ways_out}")
        return account

    def none_usable(self) -> str:
        ways = self.kind_of(self.paths[0]).ways
        section = "task" if self.view.names_classes else self.where
        settings = [*ways, *(f"{section}.{name}" for name in self.columns)][:3]
        return f"; no row can be used: try {', '.join(settings[:-1])} or {settings[-1]}" if ways else ""

    def named(self) -> list[dict[str, list[str]]]:
        return [names_in(self.field, path, self.columns) for path in self.paths if self.view.names_classes]


def names_in(field: str, path: Path, columns: dict[str, str]) -> dict[str, list[str]]:
    """{column: names of the classes} of the columns for which a file has such names."""
    wanted = list(dict.fromkeys(columns.values()))

    def found(path: Path) -> dict[str, list[str]]:
        with readable(field, path):
            names = {column: format_of(path).class_names(field, path, column) for column in wanted}
        return {column: of for column, of in names.items() if of is not None}

    return {} if format_of(path) is None else contents.value(path, f"class names: {wanted}", found)
