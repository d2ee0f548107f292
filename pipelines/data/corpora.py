"""From the recipe's data section to one corpus of documents per split."""

import re
from collections.abc import Collection
from dataclasses import replace

from ..plugins import SOURCES
from ..recipes.data_section import SourceSection, check_data
from ..recipes.schema import DataSection
from ..storage.cache import cache_folder
from .documents import Corpus, Document, Limits, SkipCounts, Source
from .hub_datasets import HubSource
from .mixture_corpus import MixtureCorpus
from .patterns import real_paths
from .remote_files import with_local_copies
from .text_files import FileSource
from .validation_split import (
    STREAM_WINDOW,
    SourceCorpus,
    ValidationSplit,
    first_documents,
    no_documents,
    plan_validation_split,
)

__all__ = ["Corpus", "Document", "SkipCounts", "open_corpora"]

SPLITS = ("train", "validation", "test")


def open_corpora(data: DataSection, seed: int = 0) -> dict[str, Corpus]:
    """The corpora of the splits the section asks for: `train`, `validation` and `test`, the last two where configured.

    Validation comes from validation_files or validation_split, else from validation_fraction of the training documents
    (of a single document the end of its text; of a stream, from its first 20,000 documents, of a shuffled one from its
    first file, too); the fraction 0 means no validation. `seed` chooses which. Globs for training leave out files of
    the other splits. max_documents bounds the training source alone, and data.clean leaves out documents of it, before
    it is split; validation and test files are read whole.

    Every source is opened and read up to its first documents. Raises UserError for settings that exclude each other,
    missing or unreadable files, a missing column, and sources without a single document.
    """
    check_data(data)
    limits = Limits(data.max_document_bytes, data.max_line_bytes, data.encoding)
    own = {split: _own_source(data, limits, "data", data, split) for split in ("validation", "test")}
    without = real_paths(*own.values())
    held = 0.0 if data.validation_files or data.validation_split else data.share_held_back
    if data.mixture:
        corpora = _of_sources(limits, data, seed, held, without)
    else:
        corpora = _split_source(data, limits, "data", data, seed, held, without)
    for split, source in own.items():
        if source is not None:
            corpora[split] = _checked(SourceCorpus(split, source))
    return corpora


def _of_sources(
    limits: Limits, data: DataSection, seed: int, held: float, without: Collection[str]
) -> dict[str, Corpus]:
    """The corpora of data.mixture; each source may have validation texts of its own. held: back of the others."""
    opened: list[dict[str, Corpus]] = []
    cleaned: list[Source] = []
    for number, section in enumerate(data.mixture):
        where = f"data.mixture.{number}"
        validation = _own_source(section, limits, where, data, "validation")
        share = held if section.validation_fraction is None else section.validation_fraction
        share, apart = (share, without) if validation is None else (0.0, {*without, *real_paths(validation)})
        corpora = _split_source(section, limits, where, data, seed, share, apart, cleaned)
        if validation is not None:
            corpora["validation"] = _checked(SourceCorpus("validation", validation))
        opened.append(corpora)
    names = source_names([section.name or one["train"].name for section, one in zip(data.mixture, opened)])
    splits = {split: {name: one[split] for name, one in zip(names, opened) if split in one} for split in SPLITS}
    return {split: MixtureCorpus(split, sources) for split, sources in splits.items() if sources}


def source_names(names: list[str]) -> list[str]:
    """What the sources of a mixture are called in the log, where numbers have names of letters, digits and _.

    Files of different folders may have one name; the number is that of `data.mixture.3.weight`.
    """
    words = [re.sub(r"\W+", "_", name).strip("_") for name in names]
    return [word if words.count(word) == 1 else f"{word}_{number}" for number, word in enumerate(words)]


def _split_source(
    section: SourceSection,
    limits: Limits,
    where: str,
    data: DataSection,
    seed: int,
    held: float,
    without: Collection[str],
    earlier: list[Source] | None = None,
) -> dict[str, Corpus]:
    """earlier: cleaned sources whose documents this one's may repeat; it gets this one, too."""
    if section.source:
        source: Source = SOURCES[section.source](limits, where)
    elif section.files:
        source = _files(section.files, section, limits, where, "files", data.cache_dir, without)
    else:
        source = HubSource(section, limits, "split", section.text_field, data.streaming, where)
    first = source.shard(0) if data.shuffle_buffer else source  # numbers in later files are not known before
    rule = None
    if held:
        window = STREAM_WINDOW if data.streaming else None
        rule = ValidationSplit(held, seed, source.splits_by_name, window)
        rule = plan_validation_split(first, rule, section.max_documents)
    else:
        _checked(SourceCorpus("train", source, max_documents=section.max_documents))
    if data.clean is not None:
        known = earlier if earlier is not None and data.clean.across_sources else []
        source = _cleaned(source, section, data, limits, known)
        known.append(source)
        first = source.shard(0) if data.shuffle_buffer else source
    most = section.max_documents
    train = SourceCorpus("train", source, rule=rule, max_documents=most)
    validation = SourceCorpus("validation", first, rule=rule, validation=True, max_documents=most)
    return {"train": train, "validation": validation} if held else {"train": train}


def _cleaned(
    source: Source, section: SourceSection, data: DataSection, limits: Limits, earlier: list[Source]
) -> Source:
    """The source without what data.clean leaves out."""
    from .cleaning import CleanSource
    from .contamination import open_test_sets

    tests = open_test_sets(data.clean, limits, section.text_field, data.cache_dir) if data.clean.decontaminate else None
    cache, most = cache_folder(data.cache_dir), section.max_documents
    return CleanSource(source, data.clean, cache, tests, most=most, streamed=data.streaming, earlier=earlier)


def _own_source(section: SourceSection, limits: Limits, where: str, data: DataSection, split: str) -> Source | None:
    files = getattr(section, f"{split}_files")
    if files:
        return _files(files, section, limits, where, f"{split}_files", data.cache_dir)
    if getattr(section, f"{split}_split"):
        return HubSource(section, limits, f"{split}_split", section.text_field, data.streaming, where)
    return None


def _files(
    patterns: str | list[str],
    section: SourceSection,
    limits: Limits,
    where: str,
    key: str,
    cache_dir: str | None,
    without: Collection[str] = (),
) -> FileSource:
    return FileSource(
        with_local_copies(patterns, f"{where}.{key}", cache_dir, without),
        replace(limits, encoding=section.encoding),
        text_field=section.text_field,
        document=section.document,
        where=where,
        key=key,
        without=without,
    )


def _checked(corpus: SourceCorpus) -> SourceCorpus:
    """The corpus, once it is known to hold a document."""
    skipped = SkipCounts()
    for item in first_documents(corpus.source.items(), corpus.max_documents):
        if isinstance(item, Document):
            return corpus
        skipped[item.reason] += 1
    raise no_documents(corpus.source, skipped)
