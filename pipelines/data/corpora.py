"""From the recipe's data section to one corpus of documents per split."""

import re
from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial

from ..plugins import SOURCES
from ..recipes.data_section import SourceSection, check_data
from ..recipes.schema import DataSection
from ..storage.cache import cache_folder, kept_value
from .documents import Corpus, Limits, Source
from .mixture_corpus import MixtureCorpus
from .opening import open_reader
from .patterns import real_paths
from .plain_text import PlainText
from .reader import TextView
from .source_parts import SourceCorpus, completed
from .splits import SPLITS, STREAM_WINDOW, VALIDATION, Split


def open_corpora(data: DataSection, seed: int = 0) -> dict[str, Corpus]:
    """The corpora of the splits that the section configures: `train`, and `validation` and `test` if there are any.

    Validation comes from validation_files or validation_split, else it is the share validation_fraction of the training
    documents, chosen by `seed` (0: no validation): of a single document the end of its text, of a stream some of its
    first 20,000 documents, which a shuffled stream takes from its first file. Globs for training leave out files of the
    other splits. max_documents and data.clean apply to the training source alone, before it is split; validation and
    test files are read whole.

    Every source is opened and read up to its first documents. Raises UserError for settings that exclude each other,
    missing or unreadable files, a missing column, and sources without a single document.
    """
    check_data(data)
    opener = _Opener(data, seed)
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

    def __init__(self, data: DataSection, seed: int):
        self.data, self.seed = data, seed
        self.limits = Limits.of(data)
        self.cleaned: list[Source] = []  # sources whose documents later ones must not repeat

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
        rule = Split({VALIDATION: held}, self.seed, source.splits_by_name, window) if held else None
        rule = self._completed(first if held else source, rule, most)
        if data.clean is not None:
            source = self._clean(source, section)
            first = source.shard(0) if data.shuffle_buffer else source
        train = SourceCorpus("train", source, rule=rule, most=most)
        validation = SourceCorpus("validation", first, rule=rule, most=most)
        return {"train": train, "validation": validation} if held else {"train": train}

    def _completed(self, source: Source, rule: Split | None, most: int | None) -> Split | None:
        """The completed rule; a source that has not changed is read once for it."""
        complete = partial(completed, rule, source, most)
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
        view = TextView(section.text_field, replace(self.limits, encoding=section.encoding), where)
        plain, cache, streaming = PlainText(section.document), self.data.cache_dir, self.data.streaming
        return open_reader(section, split, view, cache_dir=cache, streaming=streaming, without=without, other=plain)

    def _clean(self, source: Source, section: SourceSection) -> Source:
        """The source without the documents that data.clean leaves out."""
        from .cleaning import CleanSource
        from .contamination import open_test_sets

        clean, cache = self.data.clean, self.data.cache_dir
        tests = open_test_sets(clean, self.limits, section.text_field, cache) if clean.decontaminate else None
        earlier, streamed = self.cleaned if clean.across_sources else [], self.data.streaming
        source = CleanSource(source, clean, cache_folder(cache), tests, section.max_documents, streamed, earlier)
        self.cleaned.append(source)
        return source
