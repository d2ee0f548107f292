"""From a section of a recipe to the reader of one split: its files, or its split of a data set."""

from collections.abc import Collection
from dataclasses import replace

from ..recipes.data_section import SourceSection
from .documents import Limits
from .file_reader import FileReader
from .hub_reader import HubReader
from .plain_text import PlainText
from .reader import ExampleView, Reader, TextView
from .remote_files import with_local_copies
from .splits import TRAIN


def files_of(
    section: SourceSection, split: str, where: str, cache_dir: str | None, without: Collection[str]
) -> tuple[str, str | list[str]] | None:
    """(the setting that names a split's files, their patterns), with local copies of URLs; None: it names none."""
    key = "files" if split == TRAIN else f"{split}_files"
    patterns = getattr(section, key)
    return patterns and (f"{where}.{key}", with_local_copies(patterns, f"{where}.{key}", cache_dir, without))


def split_field_of(section: SourceSection, split: str) -> str | None:
    """The setting that names a split of the section's data set; None: it names none."""
    key = "split" if split == TRAIN else f"{split}_split"
    return key if section.dataset and getattr(section, key) else None


def open_texts(
    section: SourceSection,
    split: str,
    limits: Limits,
    *,
    where: str = "data",
    cache_dir: str | None = None,
    streaming: bool = False,
    without: Collection[str] = (),
) -> Reader | None:
    """The documents that the section names for a split; None: it names none. without: files that globs leave out."""
    if files := files_of(section, split, where, cache_dir, without):
        view = TextView(section.text_field, replace(limits, encoding=section.encoding), where)
        return FileReader(*files, view, without=without, other=PlainText(section.document))
    if split_field := split_field_of(section, split):
        return HubReader(section, split_field, TextView(section.text_field, limits, where), streaming=streaming)
    return None


def open_rows(
    section: SourceSection,
    split: str,
    columns: dict[str, str],
    limits: Limits,
    *,
    cache_dir: str | None = None,
    without: Collection[str] = (),
) -> Reader | None:
    """The rows with `columns` that the section names for a split; None: it names none."""
    view = ExampleView(columns, limits)
    if files := files_of(section, split, "data", cache_dir, without):
        return FileReader(*files, view, without=without)
    split_field = split_field_of(section, split)
    return HubReader(section, split_field, view) if split_field else None
