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
from ..data.file_formats import FILE_FORMATS, SEPARATORS, Excel, Separated, format_of
from ..data.file_reader import FileReader
from ..data.files import find_files, open_file
from ..data.opening import open_reader
from ..data.plain_text import CODE_AND_MARKUP, TEXT, is_image_file
from ..data.reader import SENTENCES, ExampleView, TextView
from ..errors import UserError, first_line
from ..generation import HUB_NAME
from ..recipes.schema import DataSection
from ..storage.packed_files import unpacked_name
from .what_columns_hold import value_of

SPLITS = {"train": "train training", "validation": "val valid validation dev devel", "test": "test testing eval"}
FIRST_TEXTS = 500  # files of plain text that are looked at


class NamedData:
    """section: the data section. is_text, is_images: what files are, where they are no tables. unused: files of a
    folder that are of no split. Raises UserError where there are no data."""

    def __init__(self, name: str):
        self.name, self.unused, self.is_text, self.is_images = name, [], False, False
        self.sentence_field: str | None = None
        path = Path(name).expanduser()
        if path.is_dir():
            self.section = self._of_folder(path)
        elif path.exists() or not HUB_NAME.fullmatch(name) or format_of(path) or path.suffix in TEXT:
            (found,) = find_files("FILE", name)
            is_table = found.suffix in TEXT and separator_in(found) is not None
            self.is_text, self.is_images = format_of(found) is None and not is_table, is_image_file(found)
            self.section = {"files": name} | ({"separator": separator_in(found)} if is_table else {})
        else:
            self.section = {"dataset": name} | self._splits_on_the_hub(name)

    @property
    def names_columns_by_a_line(self) -> bool:
        """Whether they are a table whose first line may hold names or values."""
        files = self.section.get("files")
        kind = format_of(Path(files)) if isinstance(files, str) else None
        return isinstance(kind, Separated | Excel) or "separator" in self.section

    def _of_folder(self, folder: Path) -> dict[str, Any]:
        there = [path for path in sorted(folder.rglob("*")) if path.is_file() and "/." not in f"/{path}"]
        images, tables = [p for p in there if is_image_file(p)], [p for p in there if format_of(p)]
        suffixes = Counter(Path(unpacked_name(path.name)).suffix for path in there)
        of_text = [one for one in (*TEXT, *CODE_AND_MARKUP) if suffixes[one]]
        of_text.sort(key=lambda one: (one not in TEXT, -suffixes[one]))
        texts = [path for path in there if Path(unpacked_name(path.name)).suffix in of_text[:1]]
        lists_images = tables and len({path.parent for path in images}) == 1  # a table beside a folder of images
        self.is_images = 2 * len(images) > len(there) and not lists_images
        self.is_text = not self.is_images and not tables
        splits: dict[str | None, list[Path]] = {}
        for path in images if self.is_images else tables or texts:
            splits.setdefault(split_of(path.relative_to(folder)), []).append(path)
        if not splits:
            raise UserError(f"FOLDER={folder} holds no table, text or image")
        others = splits.pop(None, [])
        if "train" not in splits:
            splits["train"], others = (others, []) if others else (splits.pop(next(iter(splits))), [])
        exact = [path for path in splits["train"] if path.name.partition(".")[0].lower() == "train"]
        self.unused = [path.name for path in [*others, *(set(splits["train"]) - set(exact) if exact else ())]]
        splits["train"] = exact or splits["train"]
        settings = {split: "files" if split == "train" else f"{split}_files" for split in SPLITS}
        return {settings[split]: self._pattern(splits[split]) for split in SPLITS if split in splits}

    def _pattern(self, files: list[Path]) -> str | list[str]:
        """What names the files of a split: a path, a folder of images, a pattern; training leaves out other splits'."""
        above, suffix = os.path.commonpath([path.parent for path in files]), "".join(files[0].suffixes)
        names = sorted(path.name for path in files)
        start = names[0][: next((at for at, (a, b) in enumerate(zip(names[0], names[-1])) if a != b), 0)]
        many = above if self.is_images else os.path.join(glob.escape(above), "**", f"{start}*{suffix}")
        return str(files[0]) if len(files) == 1 else many

    def _splits_on_the_hub(self, name: str) -> dict[str, str]:
        from datasets import get_dataset_split_names

        try:
            there = get_dataset_split_names(name)
        except Exception as error:  # of datasets, of the Hub, of the network
            reason = first_line(error).rstrip(".")[:300]
            raise UserError(f"{name} is no file or folder here, and no data set that can be read: {reason}") from None
        found = {split: next((one for one in there if split_of(Path(one)) == split), None) for split in SPLITS}
        train = {"split": found.pop("train") or there[0]}
        return train | {f"{split}_split": one for split, one in found.items() if one is not None}

    def rows(self, split: str = "train") -> Iterator[dict[str, Any] | UserError]:
        """The rows of a split with all columns that they have, joined by sentence_field; of plain text the first ones.
        How a file is read is noted in the section."""
        section = DataSection(**self.section)
        if self.is_images:
            paths = sorted(glob.glob(f"{glob.escape(self.section['files'])}/**/*", recursive=True))
            return ({"image": one, "label": Path(one).parent.name} for one in paths if is_image_file(Path(one)))
        limits, columns = Limits.of(section), {}
        if self.is_text:
            texts = open_reader(section, split, TextView("text", limits), None)
            columns = self._columns_of_texts(texts.paths, limits)
            if not columns:
                return ({"text": one.text} for one in islice(texts.items(), FIRST_TEXTS) if isinstance(one, Document))
        reader = open_reader(section, split, ExampleView(columns, limits), None)
        if isinstance(reader, FileReader):
            self.section |= reader.found_in(reader.paths[0])
        if not columns:
            reader = reader.with_all_columns(**({SENTENCES: self.sentence_field} if self.sentence_field else {}))
        return (row for _, (_, row), _ in reader.read_from())

    def keep_splits_with(self, columns: list[str]) -> None:
        """Leave out splits that lack one of these columns, or have no value but -1 in it, as tests without labels."""
        for setting in [name for name in self.section if re.fullmatch("(validation|test)_(files|split)", name)]:
            first = [row for row in islice(self.rows(setting.split("_")[0]), 50) if isinstance(row, dict)]
            if any(all(value_of(row, name) in (None, "", -1) for row in first) for name in columns):
                self.unused.append(Path(self.section.pop(setting)).name)

    def _columns_of_texts(self, paths: list[Path], limits: Limits) -> dict[str, str]:
        """The columns that text files have: words and tags, a text and its folder; {}: they are texts alone."""
        first = list(islice(FILE_FORMATS[".conll"].rows("FILE", paths[0], [], limits), 50))
        if len(first) > 2 and sum(isinstance(row, dict) for _, row in first) > 0.9 * len(first):
            return {"tokens_field": "tokens", "tags_field": "tags"}
        folders = Counter(path.parent.name for path in paths)
        are_classes = 1 < len(folders) < 30 and min(folders.values()) > 4 and not any(map(str.isdecimal, folders))
        return {"text_field": "text", "label_field": "label"} if are_classes else {}


def separator_in(path: Path) -> str | None:
    """The name of what separates values in each line of a text file, as many times; None: it is no table."""
    with open_file(path, Limits.of(DataSection()).encoding) as stream:
        lines = [line.decode("utf-8", "replace") for line in islice(stream, FIRST_TEXTS) if line.strip()]
    for name, fewest in (("tab", 2), ("semicolon", 10), ("bar", 10)):
        numbers = {line.count(SEPARATORS[name]) for line in lines}
        if len(lines) >= fewest and len(numbers) == 1 and numbers != {0}:
            return name
    return None


def split_of(path: Path) -> str | None:
    """The split that a file's name, or the name of a folder that it is in, stands for."""
    for part in (path.name.partition(".")[0], *path.parts[-2::-1]):
        words = {*re.split(r"[\W_\d]+", part.lower())}
        found = next((split for split, names in SPLITS.items() if words & {*names.split()}), None)
        if found is not None:
            return found
    return None
