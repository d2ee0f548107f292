"""From a section of a recipe to the reader of one split: its files, or its split of a data set."""

from collections.abc import Callable, Collection

from ..recipes.data_section import SourceSection
from .file_formats import FileFormat
from .file_reader import FileReader
from .hub_reader import HubReader
from .reader import Reader, View
from .remote_files import with_local_copies
from .splits import TRAIN


def open_reader(
    section: SourceSection,
    split: str,
    view: View,
    *,
    cache_dir: str | None = None,
    streaming: bool = False,
    without: Collection[str] = (),
    other: FileFormat | None = None,
    image_column: str | None = None,
    read_files: Callable = FileReader,
) -> Reader | None:
    """The reader of what the section names for a split; None: it names nothing.

    without: files that globs leave out. other, image_column: as FileReader and HubReader take them. read_files: called
    like FileReader.
    """
    files, split_name = ("files", "split") if split == TRAIN else (f"{split}_files", f"{split}_split")
    if getattr(section, files):
        field = f"{view.where}.{files}"
        patterns = with_local_copies(getattr(section, files), field, cache_dir, without)
        return read_files(field, patterns, view, without=without, other=other, image_column=image_column)
    if section.dataset and getattr(section, split_name):
        return HubReader(section, split_name, view, streaming=streaming, image_column=image_column)
    return None
