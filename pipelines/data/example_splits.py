"""The examples of each split that a data section asks for: read as they are, or made of what is there."""

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import islice

from ..errors import UserError
from ..recipes.schema import DataSection
from .derived import open_derived
from .documents import Limits
from .examples import GROUPS, ExampleFiles, Examples, ExampleSource, HubExamples
from .patterns import real_paths
from .planned_split import PartOfPlan, SplitPlan, planned_parts
from .remote_files import with_local_copies
from .validation_split import ValidationSplit

# Examples held back by default, where so many are there; of MANY, 5 % are more.
AT_LEAST, ENOUGH, MANY = 500, 5000, 15_000


def open_examples(
    data: DataSection,
    columns: dict[str, str],
    *,
    files: Callable = ExampleFiles,
    hub: Callable = HubExamples,
    classes: str | None = None,
) -> dict[str, Examples]:
    """The examples of the splits the section asks for: `train`, `validation` and `test`, the last two where configured.

    Without validation files or split, validation_fraction of the training examples are for validation, by their index;
    0: none; null: 5 %, and at least 500 of 5,000 or more, because differences between runs drown in the noise of less.
    With test_fraction, stratify or group_field who is in which part is planned (planned_split.py).
    Globs for training leave out the other splits' files. max_documents bounds the training source before it is split.
    classes: column of the classes, of which parts may get their shares.
    files and hub make the sources, and are called as the classes that are their defaults.

    With data.derive the examples are made of what is there (derived.py).

    Raises UserError for missing files, data sets and columns, and for a split without an example.
    """
    if data.derive is not None:
        return open_derived(
            data,
            columns,
            lambda: open_examples(replace(data, derive=None), columns, files=files, hub=hub, classes=classes),
        )
    if data.group_field is not None:
        columns = columns | {GROUPS: data.group_field}
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
    rules = rules_of(data, sources, classes)
    splits = {}
    for split, source in sources.items():
        rule = rules.get(split)
        source = sources["train"] if source is None and rule is not None else source
        if source is None:
            continue
        is_held = split == "validation" or isinstance(rule, PartOfPlan)
        most = data.max_documents if split == "train" or rule is not None else None
        splits[split] = Examples(split, source, rule=rule, validation=is_held, most=most)
        if next(splits[split].numbered(), None) is None:
            field = "test_fraction" if split == "test" else "validation_fraction"
            what = f" (data.{field}={getattr(data, field)} leaves none)" if rule else ""
            raise UserError(f"data: {source.name} holds no example for {split}{what}")
    return splits


def rules_of(
    data: DataSection, sources: dict[str, ExampleSource | None], classes: str | None
) -> dict[str, ValidationSplit | PartOfPlan]:
    """What divides the training source: {split: its rule}, empty where every split has a source of its own."""
    train, rule = sources["train"], None
    if sources["validation"] is None and data.share_held_back > 0:
        rule = ValidationSplit(data.share_held_back)
        if data.validation_fraction is None:
            most = min(data.max_documents or MANY, MANY)
            there = sum(1 for _ in islice(train.items(), most))
            rule = rule.holding_at_least(AT_LEAST, there) if ENOUGH <= there < MANY else rule
    shares = {"test": data.test_fraction, "validation": rule and rule.fraction}
    shares = {split: share for split, share in shares.items() if share}
    if data.test_fraction is None and not data.stratify and data.group_field is None:
        return {} if rule is None else {"train": rule, "validation": rule}  # as ever: runs that were begun go on
    plan = SplitPlan(shares, classes if data.by_class else None, data.group_field)
    parts = planned_parts(plan, train.only(plan.classes, plan.groups).items(), data.max_documents)
    return {split: PartOfPlan(plan, split, parts) for split in ("train", *shares)}
