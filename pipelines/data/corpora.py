"""From the recipe's data section to one corpus of documents per split."""

from ..errors import UserError, did_you_mean
from ..recipes.schema import DataSection, SourceSection
from .documents import Corpus, Document, Limits, SkipCounts, Source
from .hub_datasets import HubSource
from .mixture import MixtureCorpus
from .stdlib import StdlibCodeSource, StdlibSource
from .text_files import FileSource
from .validation_split import STREAM_WINDOW, HoldBack, SourceCorpus, first_documents, no_documents, plan_hold_back

__all__ = ["Corpus", "Document", "SkipCounts", "open_corpora"]

_KINDS = ("source", "files", "dataset", "mixture")
_BUILT_IN = {source.name: source for source in (StdlibSource, StdlibCodeSource)}


def open_corpora(data: DataSection, seed: int = 0) -> dict[str, Corpus]:
    """The corpora of the splits the section asks for: `train`, `validation` and `test`, the last two where configured.

    Validation comes from validation_files or validation_split, else validation_fraction of the training documents are
    held back (of a single document the end of its text; of a stream, from its first 20,000 documents); the fraction 0
    means no validation. `seed` chooses which. max_documents bounds the training source alone, before documents are held
    back; validation and test files are read whole.

    Every source is opened and read up to its first documents. Raises UserError for wrong fields, missing or unreadable
    files, a missing column, and sources without a single document.
    """
    check_data(data)
    limits = Limits(data.max_document_bytes, data.max_line_bytes)
    hold_back = data.validation_fraction > 0 and not (data.validation_files or data.validation_split)
    if data.mixture:
        parts = []
        for number, section in enumerate(data.mixture):
            where = f"data.mixture.{number}"
            parts.append(_split_source(section, limits, where, data, seed, hold_back))
        weights = [section.weight for section in data.mixture]
        corpora: dict[str, Corpus] = {}
        for split in parts[0]:
            members = [(part[split], weight) for part, weight in zip(parts, weights)]
            corpora[split] = MixtureCorpus(split, members, keep_shares=split == "train")
    else:
        corpora = _split_source(data, limits, "data", data, seed, hold_back)
    for split in ("validation", "test"):
        source = _own_source(data, limits, split)
        if source is not None:
            corpora[split] = _checked(SourceCorpus(split, source))
    return corpora


def check_data(data: DataSection) -> None:
    """Raise UserError for a data section that contradicts itself; no file is touched."""
    _check_source(data, "data", _KINDS)
    for number, section in enumerate(data.mixture):
        where = f"data.mixture.{number}"
        _check_source(section, where, _KINDS[:3])
        if not section.weight > 0:
            raise UserError(f"{where}.weight={section.weight} must be greater than 0.")
    if data.mixture and data.max_documents is not None:
        raise UserError(
            "data.max_documents does not go with data.mixture; set max_documents in the sources of the mixture."
        )
    if not 0 <= data.validation_fraction < 1:
        raise UserError(f"data.validation_fraction={data.validation_fraction} must be at least 0 and below 1.")
    for name in ("validation", "test"):
        if getattr(data, f"{name}_files") and getattr(data, f"{name}_split"):
            raise UserError(
                f"data.{name}_files and data.{name}_split are both set; only one can say where the text comes from."
            )
        if getattr(data, f"{name}_split") and not data.dataset:
            raise UserError(
                f"data.{name}_split={getattr(data, f'{name}_split')!r} needs data.dataset; use data.{name}_files."
            )
    for name in ("max_document_bytes", "max_line_bytes"):
        if getattr(data, name) < 1:
            raise UserError(f"data.{name}={getattr(data, name)} must be at least 1.")


def _check_source(section: SourceSection, where: str, kinds: tuple[str, ...]) -> None:
    chosen = [kind for kind in kinds if getattr(section, kind)]
    if len(chosen) != 1:
        found = f"{' and '.join(chosen)} are set" if chosen else "none is set"
        raise UserError(f"{where}: exactly one of {', '.join(kinds)} says where the text comes from, but {found}.")
    if section.source not in (None, *_BUILT_IN):
        raise UserError(
            f"{where}.source={section.source!r}: no such built-in corpus{did_you_mean(section.source, _BUILT_IN)}"
        )
    if section.document not in ("file", "line", "paragraph"):
        hint = did_you_mean(section.document, ["file", "line", "paragraph"])
        raise UserError(f"{where}.document={section.document!r}: no such kind of document{hint}")
    if section.max_documents is not None and section.max_documents < 1:
        raise UserError(f"{where}.max_documents={section.max_documents} must be at least 1.")
    for name in ("config_name", "revision"):
        if getattr(section, name) and not section.dataset:
            raise UserError(f"{where}.{name}={getattr(section, name)!r} needs {where}.dataset.")


def _split_source(
    section: SourceSection, limits: Limits, where: str, data: DataSection, seed: int, hold_back: bool
) -> dict[str, Corpus]:
    if section.source:
        source: Source = _BUILT_IN[section.source](limits, where)
    elif section.files:
        source = _files(section.files, section, limits, where, "files")
    else:
        source = _hub(section, limits, where, "split", data.streaming)
    if not hold_back:
        return {"train": _checked(SourceCorpus("train", source, max_documents=section.max_documents))}
    window = STREAM_WINDOW if data.streaming else None
    rule = HoldBack(data.validation_fraction, seed, source.splits_by_name, window)
    rule = plan_hold_back(source, rule, section.max_documents)
    return {
        "train": SourceCorpus("train", source, rule=rule, max_documents=section.max_documents),
        "validation": SourceCorpus("validation", source, rule=rule, held=True, max_documents=section.max_documents),
    }


def _own_source(data: DataSection, limits: Limits, split: str) -> Source | None:
    """The source of a split that has one of its own, or None."""
    files = getattr(data, f"{split}_files")
    if files:
        return _files(files, data, limits, "data", f"{split}_files")
    if getattr(data, f"{split}_split"):
        return _hub(data, limits, "data", f"{split}_split", data.streaming)
    return None


def _files(patterns: str | list[str], section: SourceSection, limits: Limits, where: str, key: str) -> FileSource:
    return FileSource(patterns, limits, text_field=section.text_field, document=section.document, where=where, key=key)


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
