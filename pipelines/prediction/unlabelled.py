"""Rows without labels: from tables, image and text files, folders of such files, or Python objects."""

import glob
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.cells import cell, cell_names
from ..data.documents import UTF8, Limits
from ..data.examples import all_unicode
from ..data.file_formats import check_opens, encoding_notes, format_of
from ..data.files import NOT_UTF8, encoding_of, file_identities, open_file, readable
from ..data.image_files import is_image_file
from ..data.patterns import find_files
from ..errors import UserError, did_you_mean
from ..recipes.schema import DataSection
from ..storage.cache import sha
from ..storage.packed_files import unpacked_name

Row = tuple[str, dict[str, Any]]  # (place, for errors; columns)
FIELD = "FILE"  # what errors call the argument


class Unlabelled:
    """Rows in a fixed order, from files or given in Python; rows from files have a column `file` beside their own.

    given: paths, globs and folders, which stand for the files in them; or mappings. A table has its columns, an image
    file the column `image`, a text file `text`. image_column: the column whose paths are relative to the table's
    folder. encoding: of the training's files, and of a file that does not tell another one. known: columns that the
    model may read. Raises UserError for a file that is missing or of an unknown format, and where there is no row.
    """

    image_column: str | None = None

    def __init__(self, given: str | Path | Iterable[Any], encoding: str = UTF8, known: Collection[str] = ()):
        data = DataSection()
        self.limits, self.encoding = Limits(data.max_document_bytes, data.max_line_bytes, UTF8), encoding
        self.known = list(known)
        given = [given] if isinstance(given, str | Path) else list(given)
        named = [str(one) for one in given if isinstance(one, str | Path)]
        self.mappings = [row for row in given if not isinstance(row, str | Path)]
        patterns = [
            os.path.join(glob.escape(one), "**", "*") if Path(one).expanduser().is_dir() else one for one in named
        ]
        self.paths = list(find_files(FIELD, patterns)) if named else []
        for path in self.paths:
            check_opens(FIELD, path)
            if not (format_of(path) or is_image_file(path) or is_text_file(path)):
                raise UserError(
                    f"{FIELD}={str(path)!r} is of no kind that is read: a table (.csv, .tsv, .jsonl, .json, .parquet; "
                    f"also compressed), an image, or a text (.txt, .md)"
                )
        self.first = next(iter(self), None)
        if self.first is None:
            names = ", ".join(map(str, self.paths[:3]))
            raise UserError(f"{FIELD}: {names} holds no row" if names else "there is no row to answer")

    def __iter__(self) -> Iterator[Row]:
        for place, row in self._all():
            if not all_unicode(row):  # a JSON escape can be one half of a surrogate pair
                raise UserError(f"{FIELD}: {place} is {FAULTS['non_utf8']}")
            yield place, row

    def _all(self) -> Iterator[Row]:
        for number, row in enumerate(self.mappings):
            if not isinstance(row, dict):
                raise UserError(f"row {number} is {type(row).__name__}; a row is a mapping of columns, or name files")
            yield f"row {number}", row
        for path in self.paths:
            with readable(FIELD, path):
                for place, row in self._rows(path):
                    yield place, {"file": str(path)} | row

    def _rows(self, path: Path) -> Iterator[Row]:
        file_format, limits = format_of(path), self._limits_of(path)
        if file_format is not None:
            names = file_format.columns(FIELD, path) or self.known
            for number, row in file_format.rows(FIELD, path, names, limits):
                place = f"{path}, {file_format.counts} {number}"
                if isinstance(row, UserError):  # a line that could not be read as a row
                    raise row
                if isinstance(row, str):
                    raise UserError(f"{FIELD}: {place} is {FAULTS[row]}")
                image = row.get(self.image_column)
                is_own = file_format.has_own_paths and isinstance(image, str) and image.strip()
                yield place, row | {self.image_column: str(path.parent / image)} if is_own else row
        elif is_image_file(path):
            yield str(path), {"image": str(path)}
        else:
            with open_file(path, limits.encoding) as stream:
                yield str(path), {"text": stream.read().decode()}

    def _limits_of(self, path: Path) -> Limits:
        """With the training's encoding where the file itself tells none."""
        told = self.encoding == UTF8 or is_image_file(path) or encoding_of(path) not in (None, "cp1252")
        return self.limits if told else replace(self.limits, encoding=self.encoding)

    def notes(self) -> list[str]:
        """A sentence for each encoding, other than UTF-8 and the training's, in which files were read."""
        found = [path for path in self.paths if not is_image_file(path) and self._limits_of(path) is self.limits]
        return encoding_notes(FIELD, found, self.limits)

    def identity(self) -> Any:
        """JSON that changes whenever the rows do, but for the content of images; of files it holds names and hashes."""
        rows = sha(json.loads(json.dumps(self.mappings, default=str)))
        files = file_identities(FIELD, [path for path in self.paths if not is_image_file(path)])
        return [[str(path) for path in self.paths], files, self.encoding, rows]


FAULTS = {"too_long": "longer than a document may be", "non_utf8": NOT_UTF8}


def is_empty(cell: Any) -> bool:
    """Whether a cell holds nothing: null, no text but white space, no words, no message with a text, no image."""
    if isinstance(cell, dict):
        return all(is_empty(value) for name, value in cell.items() if name != "role")
    if isinstance(cell, list | tuple):
        return all(map(is_empty, cell))
    if isinstance(cell, str | bytes):
        return cell.strip() in ("", "[]", b"")
    return cell is None or str(cell).lower() in ("nan", "<na>", "nat")  # as numpy and pandas write null


def holds_empty(cell: Any) -> bool:
    """Whether a cell is empty, or a list of which a part is."""
    return is_empty(cell) or (isinstance(cell, list) and any(map(is_empty, cell)))


def is_text_file(path: Path) -> bool:
    return unpacked_name(path.name).endswith((".txt", ".md", ".text"))


class Columns:
    """Finds the columns that a model reads in rows where they may have other names.

    renamed: {name in the model's recipe: name in the rows}.
    """

    def __init__(self, renamed: dict[str, str]):
        self.renamed = renamed

    def there(self, row: dict[str, Any]) -> set[str]:
        """The columns of a row, also under the names that the recipe has for them."""
        names = set(cell_names(row))
        return names | {name for name, in_rows in self.renamed.items() if in_rows in names}

    def check(self, wanted: Sequence[str]) -> None:
        """Raise UserError for renamed columns that the model does not read."""
        for name in self.renamed:
            if name not in wanted:
                near = did_you_mean(name, wanted)
                raise UserError(f"--columns {name}={self.renamed[name]}: the model reads no column {name!r}{near}")

    def read(self, wanted: Sequence[str], place: str, row: dict[str, Any]) -> dict[str, Any]:
        """The row, with the columns that the model reads by the recipe's names. Raises UserError for a missing one."""
        columns = {}
        for name in wanted:
            alias = self.renamed.get(name, name)
            try:
                columns[name] = cell(row, alias)
            except KeyError:
                names = [known for known in row if known != "file"]
                raise UserError(
                    f"{place} has no column {alias!r}, which the model reads; it has {', '.join(names[:12])}: name the "
                    f"one that is meant by --columns {name}={(names or ['COLUMN'])[0]}"
                ) from None
        return row | columns


def parts(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    rows = iter(rows)
    while part := list(islice(rows, size)):
        yield part
