"""The examples of each split that a data section asks for: read as they are, or made of what is there."""

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import islice

from ..errors import UserError
from ..recipes.schema import DataSection
from .derived import open_derived
from .documents import Limits
from .examples import ExampleFiles, Examples, ExampleSource, HubExamples
from .patterns import real_paths
from .remote_files import with_local_copies
from .validation_split import ValidationSplit

# Examples held back by default, where so many are there; of MANY, 5 % are more.
AT_LEAST, ENOUGH, MANY = 500, 5000, 15_000


def open_examples(
    data: DataSection, columns: dict[str, str], *, files: Callable = ExampleFiles, hub: Callable = HubExamples
) -> dict[str, Examples]:
    """The examples of the splits the section asks for: `train`, `validation` and `test`, the last two where configured.

    Without validation files or split, validation_fraction of the training examples are for validation, by their index;
    0: none; null: 5 %, and at least 500 of 5,000 or more, because differences between runs drown in the noise of less.
    Globs for training leave out the other splits' files. max_documents bounds the training source before it is split.
    files and hub make the sources, and are called as the classes that are their defaults.

    With data.derive the examples are made of what is there (derived.py).

    Raises UserError for missing files, data sets and columns, and for a split without an example.
    """
    if data.derive is not None:
        return open_derived(
            data, columns, lambda: open_examples(replace(data, derive=None), columns, files=files, hub=hub)
        )
    limits = Limits(data.max_document_bytes, data.max_line_bytes, data.encoding)

    def opened(split: str, without: Collection[str] = ()) -> ExampleSource | None:
        files_field = "files" if split == "train" else f"{split}_files"
        split_field = "split" if split == "train" else f"{split}_split"
        if getattr(data, files_field):
            field = f"data.{files_field}"
            patterns = with_local_copies(getattr(data, files_field), field, data.cache_dir, without)
            return files(patterns, columns, limits, field, without)
        if data.dataset and getattr(data, split_field):
            return hub(data, split_field, columns, limits)
        return None

    others = {split: opened(split) for split in ("validation", "test")}
    sources = {"train": opened("train", real_paths(*others.values()))} | others
    rule = None
    if sources["validation"] is None and data.share_held_back > 0:
        rule, sources["validation"] = ValidationSplit(data.share_held_back), sources["train"]
        if data.validation_fraction is None:
            most = min(data.max_documents or MANY, MANY)
            there = sum(1 for _ in islice(sources["train"].items(), most))
            rule = rule.holding_at_least(AT_LEAST, there) if ENOUGH <= there < MANY else rule
    splits = {}
    for split, source in sources.items():
        if source is None:
            continue
        mine = rule if split != "test" else None
        most = data.max_documents if split == "train" or mine is not None else None
        splits[split] = Examples(split, source, rule=mine, validation=split == "validation", most=most)
        if next(splits[split].numbered(), None) is None:
            what = f" (data.validation_fraction={mine.fraction} leaves none)" if mine else ""
            raise UserError(f"data: {source.name} holds no example for {split}{what}")
    return splits
