"""From the recipe's data section to one corpus of documents per split."""

from collections.abc import Collection
from dataclasses import replace

from ..plugins import SOURCES
from ..recipes.checks import check_data
from ..recipes.schema import DataSection, SourceSection
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
    own = {split: _own_source(data, limits, split) for split in ("validation", "test")}
    without = real_paths(*own.values())
    splits = data.share_held_back > 0 and not (data.validation_files or data.validation_split)
    if data.mixture:
        parts = []
        for number, section in enumerate(data.mixture):
            where = f"data.mixture.{number}"
            parts.append(_split_source(section, limits, where, data, seed, splits, without))
        weights, names = zip(*((section.weight, section.name) for section in data.mixture))
        corpora: dict[str, Corpus] = {}
        for split in parts[0]:
            members = [(part[split], weight) for part, weight in zip(parts, weights)]
            corpora[split] = MixtureCorpus(split, members, keep_shares=split == "train", names=names)
    else:
        corpora = _split_source(data, limits, "data", data, seed, splits, without)
    for split, source in own.items():
        if source is not None:
            corpora[split] = _checked(SourceCorpus(split, source))
    return corpora


def _split_source(
    section: SourceSection,
    limits: Limits,
    where: str,
    data: DataSection,
    seed: int,
    splits: bool,
    without: Collection[str],
) -> dict[str, Corpus]:
    if section.source:
        source: Source = SOURCES[section.source](limits, where)
    elif section.files:
        limits = replace(limits, encoding=section.encoding)
        source = _files(section.files, section, limits, where, "files", data.cache_dir, without)
    else:
        source = _hub(section, limits, where, "split", data.streaming)
    if not splits:
        _checked(SourceCorpus("train", source, max_documents=section.max_documents))
        source = _cleaned(source, section, data, limits)
        return {"train": SourceCorpus("train", source, max_documents=section.max_documents)}
    window = STREAM_WINDOW if data.streaming else None
    rule = ValidationSplit(data.share_held_back, seed, source.splits_by_name, window)
    candidates = source.shard(0) if data.shuffle_buffer else source  # numbers in later files are not known before
    rule = plan_validation_split(candidates, rule, section.max_documents)
    source = _cleaned(source, section, data, limits)
    candidates = source.shard(0) if data.shuffle_buffer else source
    return {
        "train": SourceCorpus("train", source, rule=rule, max_documents=section.max_documents),
        "validation": SourceCorpus(
            "validation", candidates, rule=rule, validation=True, max_documents=section.max_documents
        ),
    }


def _cleaned(source: Source, section: SourceSection, data: DataSection, limits: Limits) -> Source:
    """The source without what data.clean leaves out."""
    if data.clean is None:
        return source
    from .cleaning import CleanSource
    from .contamination import open_test_sets

    tests = open_test_sets(data.clean, limits, section.text_field, data.cache_dir)
    return CleanSource(
        source, data.clean, cache_folder(data.cache_dir), tests, most=section.max_documents, streamed=data.streaming
    )


def _own_source(data: DataSection, limits: Limits, split: str) -> Source | None:
    """The source of a split that has one of its own, or None."""
    files = getattr(data, f"{split}_files")
    if files:
        return _files(files, data, limits, "data", f"{split}_files", data.cache_dir)
    if getattr(data, f"{split}_split"):
        return _hub(data, limits, "data", f"{split}_split", data.streaming)
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
        limits,
        text_field=section.text_field,
        document=section.document,
        where=where,
        key=key,
        without=without,
    )


def _hub(section: SourceSection, limits: Limits, where: str, split_field: str, streaming: bool) -> HubSource:
    return HubSource(
        section.dataset,
        limits,
        split=getattr(section, split_field),
        split_field=split_field,
        config_name=section.config_name,
        revision=section.revision,
        text_field=section.text_field,
        streaming=streaming,
        where=where,
    )


def _checked(corpus: SourceCorpus) -> SourceCorpus:
    """The corpus, once it is known to hold a document."""
    skipped = SkipCounts()
    for item in first_documents(corpus.source.items(), corpus.max_documents):
        if isinstance(item, Document):
            return corpus
        skipped.count(item.reason)
    raise no_documents(corpus.source, skipped)
