"""The examples of each split of a data section: as they are in the data, or derived from it."""

from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from itertools import islice

from ..errors import UserError
from ..recipes.schema import DataSection
from ..storage.cache import kept_value
from .derived import open_derived
from .documents import Limits
from .examples import GROUPS, ExampleFiles, Examples, ExampleSource, HubExamples
from .patterns import real_paths
from .planned_split import PartOfPlan, SplitPlan, planned_parts
from .remote_files import with_local_copies
from .validation_split import ValidationSplit

# By default at least AT_LEAST examples are held back if there are ENOUGH; of MANY or more, 5 % are more than that.
AT_LEAST, ENOUGH, MANY = 500, 5000, 15_000


def open_examples(
    data: DataSection,
    columns: dict[str, str],
    *,
    files: Callable = ExampleFiles,
    hub: Callable = HubExamples,
    classes: str | None = None,
) -> dict[str, Examples]:
    """The examples of the splits that the section configures: `train`, and `validation` and `test` if there are any.

    Without validation files or split, the share validation_fraction of the training examples is for validation, by
    index; 0: none; null: 5 %, and at least 500 of 5,000 or more, because noise hides the differences of runs on fewer.
    With test_fraction, stratify or group_field the split is planned (planned_split.py).
    Globs for training leave out the other splits' files. max_documents bounds the training source before it is split.
    classes: the column of the classes, for a stratified split.
    files, hub: make the sources; they are called like the classes that are their defaults.

    With data.derive the examples are derived from the data (derived.py).

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
        splits[split] = examples = Examples(split, source, rule=rule, validation=is_held, most=most)
        if kept_value(examples.identity, lambda examples=examples: next(examples.numbered(), None) is None):
            field = "test_fraction" if split == "test" else "validation_fraction"
            reason = f" (data.{field}={getattr(data, field)} leaves none)" if rule else ""
            raise UserError(f"data: {source.name} holds no example for {split}{reason}")
    return splits


def rules_of(
    data: DataSection, sources: dict[str, ExampleSource | None], classes: str | None
) -> dict[str, ValidationSplit | PartOfPlan]:
    """{split: the rule for its part of the training source}; {} where every split has its own source."""
    train, rule = sources["train"], None
    if sources["validation"] is None and data.share_held_back > 0:
        rule = ValidationSplit(data.share_held_back)
        if data.validation_fraction is None:
            most = min(data.max_documents or MANY, MANY)
            number = kept_value(
                lambda: ["rows", train.identity(), most], lambda: sum(1 for _ in islice(train.items(), most))
            )
            rule = rule.holding_at_least(AT_LEAST, number) if ENOUGH <= number < MANY else rule
    shares = {"test": data.test_fraction, "validation": rule and rule.fraction}
    shares = {split: share for split, share in shares.items() if share}
    if data.test_fraction is None and not data.stratify and data.group_field is None:
        return {} if rule is None else {"train": rule, "validation": rule}  # as in older versions, for resumed runs
    plan = SplitPlan(shares, classes if data.by_class else None, data.group_field)
    columns, most = train.only(plan.classes, plan.groups), data.max_documents
    parts = kept_value(
        lambda: ["parts", train.identity(), asdict(plan), most, data.max_document_bytes],
        lambda: planned_parts(plan, columns.items(), most),
    )
    return {split: PartOfPlan(plan, split, parts) for split in ("train", *shares)}
