"""The answers on disk: parts, each complete or absent, which are joined into one file at the end.

While a prediction runs, its parts are in a hidden folder beside the file, whose name depends on the model, the rows and
the settings. The same command thus finds them again, whatever ended the earlier one. A part has a checksum.
"""

import csv
import glob
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation.request import check_writable
from ..storage.atomic import replaced_file
from ..storage.contents import read_value, write_value
from ..storage.folder_lock import FolderInUse, folder_lock
from ..storage.json_text import finite, json_text

Answer = dict[str, Any]


class AnswerFile:
    """The file `path` of answers, and its parts. Raises UserError for a name of an unknown format."""

    def __init__(self, path: Path):
        self.path = path
        suffix = path.suffix.lower()
        if suffix not in WRITERS:
            raise UserError(f"--out {path}: the name ends in {suffix or 'no format'!r}; known: {', '.join(WRITERS)}")
        check_writable(path, "--out")
        self.write: Callable[[Callable[[], Iterator[list[Answer]]], Path], None] = WRITERS[suffix]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing the file; raises UserError where one does."""
        try:
            with folder_lock(self.path.parent, f".{self.path.name}.lock"):
                yield
        except FolderInUse as error:
            raise UserError(
                f"--out {self.path} is written by {error}; wait for its end, or name another file"
            ) from None

    def begin(self, key: str) -> None:
        """Name the folder for the parts of this key. key: changes with model, rows and settings."""
        self.key, self.folder = key, self.path.with_name(f".{self.path.name}.{key[:16]}.parts")

    def remove_others(self) -> None:
        """Remove the parts for this file of other models, rows and settings."""
        for other in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.parts"):
            if other != self.folder:
                shutil.rmtree(other)

    def part(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"

    def add(self, number: int, answers: list[Answer]) -> None:
        """Write a part, complete or not at all."""
        write_value(self.part(number), [self.key, finite(answers)])

    def answers(self, number: int) -> list[Answer] | None:
        """A part; None where it is missing, damaged or not of this key, and so is to be made again."""
        key, answers = read_value(self.part(number)) or (None, None)
        return answers if key == self.key else None

    def join(self, count: int) -> None:
        """Write the file from its parts, in their order, and remove them."""

        def parts() -> Iterator[list[Answer]]:
            for number in range(count):
                answers = self.answers(number)
                if answers is None:
                    raise UserError(f"{self.part(number)} was damaged meanwhile; the same command makes it again")
                yield answers

        with replaced_file(self.path) as temporary:
            self.write(parts, temporary)
        shutil.rmtree(self.folder)


def _write_lines(parts: Callable[[], Iterator[list[Answer]]], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for rows in parts():
            file.writelines(json_text(row, None) + "\n" for row in rows)


def _write_table(parts: Callable[[], Iterator[list[Answer]]], path: Path) -> None:
    """Write CSV; lists and mappings become JSON in their cell."""
    names = list(dict.fromkeys(name for rows in parts() for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        for rows in parts():
            for row in rows:
                nested = {name: json_text(value, None) for name, value in row.items() if isinstance(value, list | dict)}
                table.writerow(row | nested)


def _write_parquet(parts: Callable[[], Iterator[list[Answer]]], path: Path) -> None:
    """Write Parquet; a column whose values have incompatible types, or none that it knows, becomes one of texts."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    types: dict[str, Any] = {}
    for rows in parts():
        for name in dict.fromkeys(name for row in rows for name in row):
            try:
                type_of_part = pyarrow.array([row.get(name) for row in rows]).type
                pair = [pyarrow.schema([(name, kind)]) for kind in (types.get(name, type_of_part), type_of_part)]
                types[name] = pyarrow.unify_schemas(pair, promote_options="permissive").field(0).type
            except (pyarrow.ArrowException, OverflowError):  # the latter of a whole number beyond 64 bits
                types[name] = pyarrow.string()
    types = {name: pyarrow.string() if _has_empty_struct(kind) else kind for name, kind in types.items()}
    texts = [name for name, kind in types.items() if kind == pyarrow.string()]
    with ParquetWriter(path, schema := pyarrow.schema(types.items())) as writer:
        for rows in parts():
            as_texts = [row | {name: _text(row[name]) for name in texts if name in row} for row in rows]
            writer.write_table(pyarrow.Table.from_pylist(as_texts, schema=schema))


def _has_empty_struct(kind: Any) -> bool:
    """Whether a type of pyarrow is, or holds, a struct without fields, which Parquet cannot write."""
    import pyarrow

    fields = [kind.field(number).type for number in range(kind.num_fields)]
    return (pyarrow.types.is_struct(kind) and not fields) or any(map(_has_empty_struct, fields))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value, None)


WRITERS = {".jsonl": _write_lines, ".csv": _write_table, ".parquet": _write_parquet}
