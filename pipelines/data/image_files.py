"""Images as labelled examples: image files in folders, tables with an image column, the Hub's data sets."""

import glob
from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..storage.contents import content_hash, contents
from ..words import counted
from .file_reader import FileReader
from .files import find_files, readable
from .plain_text import WholeFile, is_image_file
from .reader import GROUPS, ExampleView
from .remote_files import is_copy

LEFT_BY_WINDOWS = ("thumbs.db", "desktop.ini")  # in folders of images; they are no part of the data


class ImageFiles(FileReader):
    """Image files, whose class is the name of the folder they lie in: `data/*/*.png`.

    Raises UserError where a pattern matches nothing, or matches images and other files together.
    """

    def __init__(self, field: str, paths: list[Path], view: ExampleView):
        named = [str(path) for path in paths if path.name.lower() not in LEFT_BY_WINDOWS]
        view.other = WholeFile(view.columns)
        super().__init__(field, named, view)
        folders = sorted({path.parent.name for path in self.paths})
        self.name = (
            f"{counted(len(self.paths), 'image')} in {', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''}"
        )

    def check(self) -> None:
        """Each is opened when it is hashed, and not twice."""
        if GROUPS in self.columns:
            raise UserError(
                f"data.{GROUPS} names a column, and image files have none; list them in a table, such as a .csv"
            )
        other = next((path for path in self.paths if not is_image_file(path)), None)
        if other is not None:
            raise UserError(
                f"{self.field} names images and other files ({other}); a pattern such as *.png leaves them out"
            )

    def identity(self) -> Any:
        files = []
        for path in self.paths:
            with readable(self.field, path):
                files.append([path.parent.name, path.name, content_hash(path)])
        return {"images": files, "columns": self.columns}

    def class_names(self, column: str) -> list[str] | None:
        return sorted({path.parent.name for path in self.paths})


class ImageTable(FileReader):
    """Tables with an image column."""

    def identity(self) -> Any:
        """The identity of the tables and, where an image is a path, of all images that are files."""
        identity, column = super().identity(), self.columns.get("image_field")  # None where labels alone are read
        what = f"images of {column} {self.limits.of_files()}"
        tables = [] if column is None else [contents.value(path, what, self._paths_in) for path in self.paths]
        hashes = [hash_of_image(image) for table in tables for image in table]
        return identity | {"image_files": hashes} if any(hashes) else identity

    def _paths_in(self, path: Path) -> list[str | None]:
        """The images of a table that are paths, which its first image tells: bytes are not read again."""
        column = self.columns["image_field"]
        with readable(self.field, path):
            reads = (self.view(row, self.field)[1] for row in self.rows_in(path))
            rows = (row for row in reads if isinstance(row, dict))
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


def read_images(field: str, patterns: str | list[str], view: ExampleView, without: Collection[str] = ()) -> FileReader:
    """Image files if the first file is one, else tables of them. A folder stands for all files in it."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    patterns = [f"{glob.escape(one)}/**/*" if Path(one).expanduser().is_dir() else one for one in patterns]
    found = list(find_files(field, patterns, without))
    first = next((path for path in found if path.name.lower() not in LEFT_BY_WINDOWS), found[0])
    if not is_image_file(first):
        return ImageTable(field, patterns, view, without)
    if is_copy(first):
        raise UserError(f"{field}: {first.name} is an image behind a URL; copy its folder, whose name is the class")
    return ImageFiles(field, found, view.only(*view.columns.values()))
