"""The examples of each split of a data section: as they are in the data, or derived from it."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import islice

from ..errors import UserError
from ..recipes.schema import DataSection
from ..storage.cache import kept_value
from .derived import open_derived
from .documents import Limits
from .examples import Examples
from .file_reader import FileReader
from .opening import open_reader
from .patterns import real_paths
from .reader import GROUPS, ExampleView, Reader
from .splits import TRAIN, VALIDATION, Split, planned_parts

# By default at least AT_LEAST examples are held back if there are ENOUGH; of MANY or more, 5 % are more than that.
AT_LEAST, ENOUGH, MANY = 500, 5000, 15_000


def open_examples(
    data: DataSection,
    columns: dict[str, str],
    *,
    classes: str | None = None,
    image_column: str | None = None,
    read_files: Callable = FileReader,
) -> dict[str, Examples]:
    """The examples of the splits that the section configures: `train`, and `validation` and `test` if there are any.

    Without validation files or split, the share validation_fraction of the training examples is for validation, by
    index; 0: none; null: 5 %, and at least 500 of 5,000 or more, because noise hides the differences of runs on fewer.
    With test_fraction, stratify or group_field the split is planned (splits.py).
    Globs for training leave out the other splits' files. max_documents bounds the training source before it is split.
    classes: the column of the classes, for a stratified split.
    image_column, read_files: as open_reader takes them.

    With data.derive the examples are derived from the data (derived.py).

    Raises UserError for missing files, data sets and columns, and for a split without an example.
    """
    if data.derive is not None:
        return open_derived(
            data,
            columns,
            lambda: open_examples(replace(data, derive=None), columns, classes=classes),
        )
    if data.group_field is not None:
        columns = columns | {GROUPS: data.group_field}
    view, images = ExampleView(columns, Limits.of(data)), {"image_column": image_column, "read_files": read_files}
    opened = partial(open_reader, data, view=view, cache_dir=data.cache_dir, **images)
    others = {split: opened(split) for split in ("validation", "test")}
    sources = {"train": opened("train", without=real_paths(*others.values()))} | others
    rule = rule_of(data, sources, classes)
    splits = {}
    for split, own in sources.items():
        is_part = rule is not None and split in (TRAIN, *rule.shares)
        if own is None and not is_part:
            continue
        source, most = (sources["train"], data.max_documents) if is_part or split == TRAIN else (own, None)
        splits[split] = examples = Examples(split, source, rule=rule if is_part else None, most=most)
        if kept_value(examples.identity, lambda examples=examples: next(examples.numbered(), None) is None):
            field = "test_fraction" if split == "test" else "validation_fraction"
            reason = f" (data.{field}={getattr(data, field)} leaves none)" if is_part else ""
            raise UserError(f"data: {source.name} holds no example for {split}{reason}")
    return splits


def rule_of(data: DataSection, sources: dict[str, Reader | None], classes: str | None) -> Split | None:
    """The rule that splits the training source; None where every split has its own source."""
    train, rule = sources["train"], None
    if sources["validation"] is None and data.share_held_back > 0:
        rule = Split({VALIDATION: data.share_held_back})
        if data.validation_fraction is None:
            most = min(data.max_documents or MANY, MANY)
            number = kept_value(
                lambda: ["rows", train.identity(), most], lambda: sum(1 for _ in islice(train.items(), most))
            )
            rule = rule.holding_at_least(AT_LEAST, number) if ENOUGH <= number < MANY else rule
    if data.test_fraction is None and not data.stratify and data.group_field is None:
        return rule
    shares = {"test": data.test_fraction, VALIDATION: rule and rule.fraction}
    shares = {split: share for split, share in shares.items() if share}
    plan = Split(shares, classes=classes if data.by_class else None, groups=data.group_field)
    columns, most = train.only(plan.classes, plan.groups), data.max_documents
    parts = kept_value(
        lambda: ["parts", train.identity(), asdict(plan), most, data.max_document_bytes],
        lambda: planned_parts(plan, columns.items(), most),
    )
    return replace(plan, planned=parts)
