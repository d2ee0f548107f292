"""Images as labelled examples: image files in folders, tables with an image column, the Hub's data sets."""

import glob
import os
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..lazy import datasets
from ..recipes.schema import DataSection
from ..storage.checksums import content_hash, contents
from ..words import counted
from .documents import Limits
from .example_splits import open_examples
from .examples import GROUPS, ExampleFiles, Examples, ExampleSource, HubExamples, Read
from .file_formats import FileFormat, format_of
from .files import readable
from .patterns import find_files
from .remote_files import is_copy

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LEFT_BY_WINDOWS = ("thumbs.db", "desktop.ini")  # in folders of images; they are no part of the data


def is_image_file(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


class ImageFiles(ExampleFiles):
    """Image files, whose class is the name of the folder they lie in: `data/*/*.png`.

    Raises UserError where a pattern matches nothing, or matches images and other files together.
    """

    def check(self) -> None:
        self.paths = [path for path in self.paths if path.name.lower() not in LEFT_BY_WINDOWS]
        other = next((path for path in self.paths if not is_image_file(path)), None)
        if other is not None:
            raise UserError(
                f"{self.field} names images and other files ({other}); a pattern such as *.png leaves them out"
            )
        if GROUPS in self.columns:
            raise UserError(
                f"data.{GROUPS} names a column, and image files have none; list them in a table, such as a .csv"
            )
        folders = sorted({path.parent.name for path in self.paths})
        self.name = (
            f"{counted(len(self.paths), 'image')} in {', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''}"
        )

    def items(self) -> Iterator[Read]:
        for path in self.paths:
            row = {"image_field": str(path), "label_field": path.parent.name}
            yield str(path), {column: row[field] for field, column in self.columns.items()}

    def identity(self) -> Any:
        files = []
        for path in self.paths:
            with readable(self.field, path):
                files.append([path.parent.name, path.name, content_hash(path)])
        return {"images": files, "columns": self.columns}

    def notes(self) -> list[str]:
        return []  # an image has no encoding

    def class_names(self, column: str) -> list[str] | None:
        return sorted({path.parent.name for path in self.paths})


class ImageTable(ExampleFiles):
    """Tables with an image column; its paths are relative to the table's folder if the format has_own_paths."""

    def _rows(self, path: Path, file_format: FileFormat) -> Iterator[Read]:
        column = self.columns.get("image_field")  # None where labels alone are read
        for place, row in super()._rows(path, file_format):
            image = row.get(column) if isinstance(row, dict) else None
            is_own = file_format.has_own_paths and isinstance(image, str)
            yield place, row | {column: str(path.parent / os.path.expanduser(image))} if is_own else row

    def identity(self) -> Any:
        """The identity of the tables and, where an image is a path, of all images that are files."""
        identity, column = super().identity(), self.columns.get("image_field")
        what = f"images of {column} {self.limits.encoding}"
        tables = [] if column is None else [contents.value(path, what, self._paths_in) for path in self.paths]
        hashes = [hash_of_image(image) for table in tables for image in table]
        return identity | {"image_files": hashes} if any(hashes) else identity

    def _paths_in(self, path: Path) -> list[str | None]:
        """The images of a table that are paths, which its first image tells: bytes are not read again."""
        column = self.columns["image_field"]
        with readable(self.field, path):
            rows = (row for _, row in self._rows(path, format_of(path)) if isinstance(row, dict))
            first = next((row for row in rows if row[column] is not None), None)
            is_path = first is not None and path_of_image(first[column])
            return [path_of_image(row[column]) for row in chain([first], rows)] if is_path else []


def path_of_image(image: Any) -> str | None:
    """The path in a cell of a table; None for bytes, and for what is no image."""
    image = (image.get("path") if not image.get("bytes") else None) if isinstance(image, dict) else image
    return image if isinstance(image, str) else None


def hash_of_image(image: Any) -> str | None:
    """The hash of the file that a cell names; None where there is none."""
    path = path_of_image(image)
    try:
        return path and content_hash(Path(path).expanduser())
    except (OSError, ValueError):  # the row is refused, or left out, when it is read
        return None


class HubImages(HubExamples):
    """A data set on the Hub or in a folder (also a folder of image folders); images stay encoded until `decode`."""

    def _rows(self):
        rows, column = super()._rows(), self.columns.get("image_field")
        is_image = isinstance(rows.features.get(column), datasets.Image)
        return rows.cast_column(column, datasets.Image(decode=False)) if is_image else rows


def open_images(data: DataSection, columns: dict[str, str], classes: str | None = None) -> dict[str, Examples]:
    """The examples of each split, as open_examples: `files` may also name image files."""
    return open_examples(data, columns, files=image_files, hub=HubImages, classes=classes)


def image_files(
    patterns: str | list[str], columns: dict[str, str], limits: Limits, field: str, without: Collection[str] = ()
) -> ExampleSource:
    """Image files if the first file is one, else tables of them. A folder stands for all files in it."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    patterns = [f"{glob.escape(one)}/**/*" if Path(one).expanduser().is_dir() else one for one in patterns]
    found = list(find_files(field, patterns, without))
    first = next((path for path in found if path.name.lower() not in LEFT_BY_WINDOWS), found[0])
    if is_image_file(first) and is_copy(first):
        raise UserError(f"{field}: {first.name} is an image behind a URL; copy its folder, whose name is the class")
    return (ImageFiles if is_image_file(first) else ImageTable)(patterns, columns, limits, field, without)
