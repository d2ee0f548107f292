"""Rows without labels: from tables, image and text files, folders of such files, or Python objects."""

import glob
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data.cells import IfThere, cell
from ..data.documents import Limits
from ..data.file_formats import FILE_FORMATS, FileFormat, check_opens, format_of
from ..data.file_reader import FileReader
from ..data.files import file_identities
from ..data.plain_text import WholeFile, is_image_file
from ..data.reader import SENTENCES, ExampleView, Row, check_some
from ..errors import UserError, nearest
from ..objectives.messages import SPEAKS
from ..recipes.schema import DataSection
from ..storage.cache import sha

Asked = tuple[str, dict[str, Any] | UserError]  # (place, for errors; columns, or why they cannot be read)
FIELD = "FILE"  # what errors call the argument


class AskedView(ExampleView):
    """A row to answer: its place, and all its columns, or the error of a row that cannot be read."""

    names_classes = False
    too_long = "longer than a document may be"
    other = WholeFile({"image_field": "image", "text_field": "text"})


class Unlabelled(FileReader):
    """Rows in a fixed order, from files or given in Python; rows from files have a column `file` beside their own.

    given: paths, globs and folders, which stand for the files in them; or mappings. A table has its columns, an image
    file the column `image`, a text file `text`. trained: the data section by which files are read that do not tell
    otherwise. known: columns that the model may read. sentences: the one by which rows of a word each are joined.
    Raises UserError for a file that is missing or of an unknown format, and where there is no row, or none that can be
    read.
    """

    def __init__(
        self,
        given: str | Path | Iterable[Any],
        trained: DataSection | None = None,
        known: Collection[str] = (),
        sentences: str | None = None,
    ):
        self.trained, self.known = Limits.of(trained or DataSection()), list(known)
        given = [given] if isinstance(given, str | Path) else list(given)
        named = [str(one) for one in given if isinstance(one, str | Path)]
        self.mappings = [row for row in given if not isinstance(row, str | Path)]
        patterns = [
            os.path.join(glob.escape(one), "**", "*") if Path(one).expanduser().is_dir() else one for one in named
        ]
        columns = {} if sentences is None else {SENTENCES: IfThere(sentences)}
        super().__init__(FIELD, patterns, AskedView(columns, Limits.of(DataSection())))
        check_some(self)
        if next(iter(self), None) is None:
            names = ", ".join(map(str, self.paths[:3]))
            raise UserError(f"{FIELD}: {names} holds no row" if names else "there is no row to answer")

    def check_opens(self, path: Path) -> None:
        check_opens(FIELD, path)

    def __iter__(self) -> Iterator[Asked]:
        return self.items()

    def rows_from(self, place: list | None = None) -> Iterator[tuple[Row, list]]:
        for number, row in enumerate(self.mappings):
            if not isinstance(row, dict):
                raise UserError(f"row {number} is {type(row).__name__}; a row is a mapping of columns, or name files")
            yield Row(f"row {number}", "", row), [0, 0]
        yield from super().rows_from(place)

    def rows_in(self, path: Path) -> Iterator[Row]:
        for row in super().rows_in(path):
            yield row._replace(values={"file": str(path)} | row.values) if isinstance(row.values, dict) else row

    def columns_in(self, path: Path, kind: FileFormat) -> list[str]:
        return kind.columns(FIELD, path) or self.known

    def limits_of(self, path: Path) -> Limits:
        return self.kind_of(path).like(path, self.limits, self.trained)

    def kind_of(self, path: Path) -> FileFormat:
        """A text file is a table where those of training were, if it has a column that the model may read."""
        kind, table = super().kind_of(path), FILE_FORMATS[".tsv"]
        if self.trained.separator is not None and format_of(path) is None and not is_image_file(path):
            with suppress(UserError):  # it is no table
                rows = table.rows(FIELD, path, [], table.like(path, self.limits, self.trained))
                names = next((row for _, row in rows if isinstance(row, dict)), {})
                return kind if names.keys().isdisjoint(self.known) else table
        return kind

    def identity(self) -> Any:
        """JSON that changes whenever the rows do, but for the content of images; of files it holds names and hashes."""
        rows = sha(json.loads(json.dumps(self.mappings, default=str)))
        files = file_identities(FIELD, [path for path in self.paths if not is_image_file(path)])
        return [[str(path) for path in self.paths], files, self.trained.of_files(), rows]


def is_empty(cell: Any) -> bool:
    """Whether a cell holds nothing: null, no text but white space, no words, no message with a text, no image."""
    if isinstance(cell, dict):
        return all(is_empty(value) for name, value in cell.items() if name not in SPEAKS)
    if isinstance(cell, list | tuple):
        return all(map(is_empty, cell))
    if isinstance(cell, str | bytes):
        return cell.strip() in ("", "[]", b"")
    return cell is None or str(cell).lower() in ("nan", "<na>", "nat")  # as numpy and pandas write null


def holds_empty(cell: Any) -> bool:
    """Whether a cell is empty, or a list of which a part is."""
    return is_empty(cell) or (isinstance(cell, list) and any(map(is_empty, cell)))


def named_as_read(row: dict[str, Any], wanted: dict[str, str], place: str) -> dict[str, Any]:
    """The row, with the columns that a model reads by the names in its recipe. wanted: {this name: that in the rows}.

    Raises UserError for a missing one.
    """
    columns = {}
    for name, alias in wanted.items():
        try:
            columns[name] = cell(row, alias)
        except KeyError:
            names = [known for known in row if known != "file"]
            free = [known for known in names if known not in wanted] or ["COLUMN"]
            wordiest = max(free, key=lambda known: len(str(row.get(known)).split()))
            raise UserError(
                f"{place} has no column {alias!r}, which the model reads; it has {', '.join(names[:12])}: name the "
                f"one that is meant by --read {name}={nearest(alias, free) or wordiest}"
            ) from None
    return row | columns
