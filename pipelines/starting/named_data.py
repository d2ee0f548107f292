"""The data that a FILE, a FOLDER or a name on the Hub stands for: a data section, and rows with all their columns."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.documents import Document, Limits
from ..data.file_formats import FILE_FORMATS, format_of
from ..data.file_reader import FileReader
from ..data.hub_reader import HubReader
from ..data.image_files import is_image_file
from ..data.opening import open_reader
from ..data.patterns import find_files
from ..data.plain_text import TEXT
from ..data.reader import ExampleView, Reader, TextView
from ..errors import UserError
from ..generation import HUB_NAME
from ..recipes.schema import DataSection
from ..storage.packed_files import unpacked_name
from .what_columns_hold import value_of

SPLITS = {"train": "train|training", "validation": "val|valid|validation|dev|devel", "test": "test|testing|eval"}
FIRST_TEXTS = 500  # files of plain text that are looked at


class NamedData:
    """section: {setting of the data section: value}. comments: on them. is_text, is_images: what files are, where they
    are no tables. unused: files of a folder that no split reads."""

    def __init__(self, name: str):
        self.name, self.comments, self.unused = name, {}, []
        self.is_text = self.is_images = False
        path = Path(name).expanduser()
        if path.is_dir():
            self.section = self._of_folder(path)
        elif path.exists() or not HUB_NAME.fullmatch(name) or format_of(path) or path.suffix in TEXT:
            (found,) = find_files("FILE", name)
            self.is_text, self.is_images = format_of(found) is None, is_image_file(found)
            self.section = {"files": name}
        else:
            self.section = {"dataset": name} | self._splits_on_the_hub(name)

    def _of_folder(self, folder: Path) -> dict[str, Any]:
        there = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_hidden(path, folder)]
        images, tables = [p for p in there if is_image_file(p)], [p for p in there if format_of(p)]
        texts = [path for path in there if Path(unpacked_name(path.name)).suffix in TEXT]
        self.is_images = 2 * len(images) > len(there)
        self.is_text = not self.is_images and not tables
        files = images if self.is_images else tables or texts
        if not files:
            raise UserError(f"FOLDER={folder} holds no table, text or image")
        splits: dict[str | None, list[Path]] = {}
        for path in files:
            splits.setdefault(split_of(path.relative_to(folder)), []).append(path)
        unnamed = splits.pop(None, [])
        exact = [
            path for path in splits.get("train", []) if path.name.split(".")[0].lower() in SPLITS["train"].split("|")
        ]
        if "train" not in splits:
            splits["train"], unnamed = (unnamed, []) if unnamed else (splits.pop(next(iter(splits))), [])
        self.unused = [path.name for path in [*unnamed, *(set(splits["train"]) - set(exact) if exact else ())]]
        splits["train"] = exact or splits["train"]
        order = [split for split in SPLITS if split in splits]
        return {_setting(split): self._pattern(splits[split], folder) for split in order}

    def _pattern(self, files: list[Path], folder: Path) -> str | list[str]:
        """A path, a folder of images, or the shortest pattern that stands for these files and no others."""
        if len(files) == 1:
            return str(files[0])
        above, suffix = os.path.commonpath([path.parent for path in files]), "".join(files[0].suffixes)
        if self.is_images:
            return above
        start = os.path.commonprefix([path.name for path in files])
        for pattern in (f"*{suffix}", f"{start}*{suffix}", f"**/*{suffix}", f"**/{start}*{suffix}"):
            whole = os.path.join(glob.escape(above), pattern)
            if sorted(glob.glob(whole, recursive=True)) == sorted(map(str, files)):
                return whole
        return list(map(str, files))

    def _splits_on_the_hub(self, name: str) -> dict[str, str]:
        from datasets import get_dataset_split_names

        try:
            there = get_dataset_split_names(name)
        except Exception as error:  # of datasets, of the Hub, of the network
            reason = str(error).split("\n")[0][:300].rstrip(".")
            raise UserError(f"{name} is no file or folder here, and no data set that can be read: {reason}") from None
        found = {split: next((one for one in there if split_of(Path(one)) == split), None) for split in SPLITS}
        found["train"] = found["train"] or there[0]
        names = {"split" if split == "train" else f"{split}_split": one for split, one in found.items()}
        return {name: one for name, one in names.items() if one is not None and (name, one) != ("split", "train")}

    def rows(self, split: str = "train") -> Iterator[dict[str, Any] | UserError]:
        """The rows of a split, whose columns are all those that its files have."""
        section = DataSection(**self.section)
        if self.is_images:
            paths = glob.glob(f"{glob.escape(self.section['files'])}/**/*", recursive=True)
            files = [path for path in map(Path, sorted(paths)) if is_image_file(path)]
            return iter([{"image": str(path), "label": path.parent.name} for path in files])
        limits = Limits.of(section)
        if self.is_text:
            texts = open_reader(section, split, TextView("text", limits), None)
            columns = self._columns_of_texts(texts.paths, limits)
            if not columns:
                texts = islice(texts.items(), FIRST_TEXTS)
                return ({"text": item.text} for item in texts if isinstance(item, Document))
            reader = open_reader(section, split, ExampleView(columns, limits), None)
        else:
            reader = open_reader(section, split, ExampleView({}, limits), None)
            reader = reader.seeing(ExampleView(columns_of(reader), limits))
        if isinstance(reader, FileReader):
            self.section |= reader.found_in(reader.paths[0])
        return (row for _, (_, row), _ in reader.read_from())

    def keep_splits_with(self, columns: list[str]) -> None:
        """Leave out splits that lack one of these columns, or have no value but -1 in it, as tests without labels."""
        for split in ("validation", "test"):
            setting = next((name for name in (f"{split}_files", f"{split}_split") if name in self.section), None)
            if setting is None or self.is_images:
                continue
            first = [row for row in islice(self.rows(split), 50) if isinstance(row, dict)]
            if any(all(value_of(row, name) in (None, "", -1) for row in first) for name in columns):
                self.unused.append(Path(str(self.section.pop(setting))).name)

    def _columns_of_texts(self, paths: list[Path], limits: Limits) -> dict[str, str]:
        """The columns that text files have: words and tags, a text and its folder; {}: they are texts alone."""
        first = list(islice(FILE_FORMATS[".conll"].rows("FILE", paths[0], [], limits), 50))
        if len(first) > 2 and sum(isinstance(row, dict) for _, row in first) > 0.9 * len(first):
            return {"tokens_field": "tokens", "tags_field": "tags"}
        folders = Counter(path.parent.name for path in paths)
        are_classes = 1 < len(folders) < 30 and min(folders.values()) > 4 and not any(map(str.isdecimal, folders))
        return {"text_field": "text", "label_field": "label"} if are_classes else {}


def columns_of(reader: Reader) -> dict[str, str]:
    """All columns of a data set or of files that name them, as a view takes them; of other files none need naming."""
    if isinstance(reader, HubReader):
        names = reader.table.column_names
    else:
        names = format_of(reader.paths[0]).columns(reader.field, reader.paths[0]) or []
    return {f"column.{number}": name for number, name in enumerate(names) if name.rpartition(".")[0] not in names}


def split_of(path: Path) -> str | None:
    """The split that a file's name, or the name of a folder that it is in, stands for."""
    for part in (path.name.split(".")[0], *path.parts[-2::-1]):
        words = re.split(r"[\W_\d]+", part.lower())
        found = next((split for split, names in SPLITS.items() if {*names.split("|")} & {*words}), None)
        if found is not None:
            return found
    return None


def _setting(split: str) -> str:
    return "files" if split == "train" else f"{split}_files"


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
