"""From the recipe's data section to what each of its splits reads: a corpus of documents, or labelled examples."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from ..errors import UserError
from ..manifest import cache_folder
from ..plugins import SOURCES
from ..recipes.data_section import SourceSection, check_data
from ..recipes.schema import DataSection
from ..storage.cache import kept_value
from .derived import open_derived
from .documents import Corpus, Limits, Skipped, Source
from .examples import Examples, MixtureCorpus, Part, SourceCorpus, no_documents
from .file_reader import FileReader
from .files import real_paths
from .hub_reader import HubReader
from .image_files import read_images
from .reader import GROUPS, SOME, ExampleView, Reader, TextView, View
from .remote_files import with_local_copies
from .splits import SPLITS, STREAM_WINDOW, TRAIN, VALIDATION, Split, planned_parts

# By default at least AT_LEAST examples are held back if there are ENOUGH; of MANY or more, 5 % are more than that.
AT_LEAST, ENOUGH, MANY = 500, 5000, 15_000


def open_reader(
    section: SourceSection,
    split: str,
    view: View,
    cache_dir: str | None,
    without: Collection[str] = (),
    streaming: bool = False,
) -> Reader | None:
    """The reader of what the section names for a split; None: it names nothing. without: files that globs leave out."""
    files, split_name = ("files", "split") if split == TRAIN else (f"{split}_files", f"{split}_split")
    if getattr(section, files):
        field, read = f"{view.where}.{files}", read_images if "image_field" in view.columns else FileReader
        return read(field, with_local_copies(getattr(section, files), field, cache_dir, without), view, without)
    if section.dataset and getattr(section, split_name):
        return HubReader(section, split_name, view, streaming)
    return None


# ---- corpora


def open_corpora(data: DataSection) -> dict[str, Corpus]:
    """The corpora of the splits that the section configures: `train`, and `validation` and `test` if there are any.

    Validation comes from validation_files or validation_split, else it is the share validation_fraction of the training
    documents, chosen by a hash (0: no validation): of a single document the end of its text, of a stream some of its
    first 20,000 documents, which a shuffled stream takes from its first file. Globs for training leave out files of the
    other splits. max_documents and data.clean apply to the training source alone, before it is split; validation and
    test files are read whole.

    Every source is opened and read up to its first documents. Raises UserError for settings that exclude each other,
    missing or unreadable files, a missing column, and sources without a single document.
    """
    check_data(data)
    opener = _Opener(data)
    sources = {split: opener.source(data, "data", split) for split in ("validation", "test")}
    without = real_paths(*sources.values())
    held = 0.0 if data.validation_files or data.validation_split else data.share_held_back
    corpora = opener.mixture(held, without) if data.mixture else opener.split(data, "data", held, without)
    for split, source in sources.items():
        if source is not None:
            corpora[split] = opener.whole(split, source)
    return corpora


def source_names(names: list[str]) -> list[str]:
    """The names of a mixture's sources in the log, whose metrics have names of letters, digits and _.

    If sources share a name, as files of different folders may, each gets its number, as in `data.mixture.3.weight`;
    again, until all names differ.
    """
    words = [re.sub(r"\W+", "_", name).strip("_") for name in names]
    while len(set(words)) < len(words):
        words = [word if words.count(word) == 1 else f"{word}_{number}" for number, word in enumerate(words)]
    return words


class _Opener:
    """Opens the sources of a data section. where: the field that errors name, such as data.mixture.1."""

    def __init__(self, data: DataSection):
        self.data, self.limits = data, Limits.of(data)

    def mixture(self, held: float, without: Collection[str]) -> dict[str, Corpus]:
        """The corpora of data.mixture. held: the validation share of sources without a share or validation data."""
        opened: list[dict[str, Corpus]] = []
        for number, section in enumerate(self.data.mixture):
            where = f"data.mixture.{number}"
            validation = self.source(section, where, "validation")
            share = held if section.validation_fraction is None else section.validation_fraction
            share, apart = (share, without) if validation is None else (0.0, {*without, *real_paths(validation)})
            corpora = self.split(section, where, share, apart)
            if validation is not None:
                corpora["validation"] = self.whole("validation", validation)
            opened.append(corpora)
        names = source_names([section.name or one["train"].name for section, one in zip(self.data.mixture, opened)])
        splits = {split: {name: one[split] for name, one in zip(names, opened) if split in one} for split in SPLITS}
        return {split: MixtureCorpus(split, sources) for split, sources in splits.items() if sources}

    def split(self, section: SourceSection, where: str, held: float, without: Collection[str]) -> dict[str, Corpus]:
        """The corpora of one source. held: the share for validation. without: files that globs leave out."""
        data, most = self.data, section.max_documents
        source = self.source(section, where, "train", without)
        first = source.shard(0) if data.shuffle_buffer else source  # document numbers in later files are not known yet
        window = STREAM_WINDOW if data.streaming else None
        rule = Split({VALIDATION: held}, by_name=source.splits_by_name, window=window) if held else None
        rule = self._completed(first if held else source, rule, most)
        if data.clean is not None:
            source = self._clean(source, section)
            first = source.shard(0) if data.shuffle_buffer else source
        train = SourceCorpus("train", source, rule=rule, most=most)
        validation = SourceCorpus("validation", first, rule=rule, most=most)
        return {"train": train, "validation": validation} if held else {"train": train}

    def _completed(self, source: Source, rule: Split | None, most: int | None) -> Split | None:
        """The rule, completed so that both parts have a document; None stays None.

        A source that has not changed is read once for it. Raises UserError where there is no document among its first
        `most`.
        """

        def complete() -> Split | None:
            part = Part(TRAIN, source, most=most)
            there = ((index, item.source) for index, item in part.numbered() if not isinstance(item, Skipped))
            first = next(there, None)
            if first is None:
                raise no_documents(source, part.tally())
            return rule and rule.with_both_parts(chain([first], there))

        if self.data.streaming:
            return complete()
        found = kept_value(
            lambda: [source.identity(), self.limits.identity(), rule and asdict(rule), most],
            lambda: (found := complete()) and asdict(found),
        )
        return found and Split(**found)

    def whole(self, split: str, source: Source) -> SourceCorpus:
        """A corpus of all documents of a source; raises UserError if there is none."""
        self._completed(source, None, None)
        return SourceCorpus(split, source)

    def source(self, section: SourceSection, where: str, split: str, without: Collection[str] = ()) -> Source | None:
        """The source that the section names for a split; None: it names none. without: files that globs leave out."""
        if section.source and split == "train":
            return SOURCES[section.source](self.limits, where)
        limits = Limits.of(self.data, section)
        view = TextView(section.text_field, limits, where, section.document)
        return open_reader(section, split, view, self.data.cache_dir, without, self.data.streaming)

    def _clean(self, source: Source, section: SourceSection) -> Source:
        """The source without the documents that data.clean leaves out."""
        from .cleaning import CleanSource
        from .contamination import open_test_sets

        clean, cache = self.data.clean, self.data.cache_dir
        tests = open_test_sets(clean, self.limits, section.text_field, cache) if clean.decontaminate else None
        return CleanSource(source, clean, cache_folder(cache), tests, section.max_documents, self.data.streaming)


# ---- labelled examples


def open_examples(data: DataSection, columns: dict[str, str], classes: str | None = None) -> dict[str, Examples]:
    """The examples of the splits that the section configures: `train`, and `validation` and `test` if there are any.

    Without validation files or split, the share validation_fraction of the training examples is for validation, by
    index; 0: none; null: 5 %, and at least 500 of 5,000 or more, because noise hides the differences of runs on fewer.
    With test_fraction, stratify or group_field the split is planned (splits.py).
    Globs for training leave out the other splits' files. max_documents bounds the training source before it is split.
    classes: the column of the classes, for a stratified split.

    With data.derive the examples are derived from the data (derived.py).

    Raises UserError for missing files, data sets and columns, and for a split without an example.
    """
    if data.derive is not None:
        as_they_are = partial(open_examples, replace(data, derive=None), columns, classes=classes)
        return open_derived(data, columns, open_corpora, as_they_are)
    if data.group_field is not None:
        columns = columns | {GROUPS: data.group_field}
    opened = partial(open_reader, data, view=ExampleView(columns, Limits.of(data)), cache_dir=data.cache_dir)
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
            way_out = "" if is_part and split != TRAIN else source.none_usable()
            raise UserError(f"data: {source.name} holds no example for {split}{reason}{way_out}")
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


def first_rows(data: DataSection, splits: Sequence[str] = SPLITS) -> tuple[list[dict[str, Any]], str]:
    """(the first rows of the first split that there is, with all their columns; its name); none of data.derive.

    Rows that cannot be read are left out. Raises UserError as open_examples.
    """
    view, there = ExampleView({}, Limits.of(data)), splits if data.derive is None else ()
    reader = next(filter(None, (open_reader(data, split, view, data.cache_dir) for split in there)), None)
    if reader is None:
        return [], ""
    rows = (row for _, row in islice(reader.with_all_columns().items(), SOME))
    return [row for row in rows if isinstance(row, dict)], reader.name
