"""Texts of test sets, and which of their sequences of words stand in a document, too."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import UserError
from ..plugins import objective_of
from ..recipes.compose import load_recipe
from ..recipes.data_section import CleanSettings
from ..recipes.recipe_files import shipped
from ..recipes.suite_file import is_suite, read_suite
from ..words import counted
from .documents import Corpus, Limits
from .remote_files import with_local_copies
from .text_files import FileSource
from .validation_split import SourceCorpus
from .word_sequences import sequences_of, words_of

FIELD = "data.clean.decontaminate"


def open_test_sets(clean: CleanSettings, limits: Limits, text_field: str, cache_dir: str | None) -> "TestSets":
    """The sets that documents must not share words with; nothing of them is read yet.

    Files are read by `text_field` where they have rows, else paragraph by paragraph. Raises UserError for what is
    neither a file, a recipe nor a suite, and for a recipe without text or without data to test on.
    """
    found: dict[str, Corpus] = {}
    for name in clean.decontaminate:
        if is_suite(name):
            for task in read_suite(name).tasks:
                found[f"{name}: {task.title}"] = _of_recipe(task.recipe, task.settings, task.split)
        elif name.endswith((".yaml", ".yml")) or name in shipped("recipes"):
            found[name] = _of_recipe(name)
        else:
            patterns = with_local_copies(name, FIELD, cache_dir)
            options = {"text_field": text_field, "document": "paragraph", "key": FIELD.removeprefix("data.")}
            found[name] = SourceCorpus("test", FileSource(patterns, limits, **options))
    return TestSets(found, clean.decontaminate_words)


def _of_recipe(name: str, settings: list[str] = (), split: str | None = None) -> Corpus:
    try:
        objective = objective_of(load_recipe(name, [*settings, "data.clean=null"]))
        sources = objective.open()
    except UserError as error:
        raise UserError(f"{FIELD}: {name}: {error}") from error
    split = split or next((split for split in ("test", "validation") if split in sources), None)
    corpus = objective.corpus(sources[split]) if split in sources else None
    if corpus is None:
        raise UserError(f"{FIELD}: the recipe {name} has no text of a {split or 'test'} split")
    return corpus


class TestSets:
    """The sequences of `length` words of some sets of texts.

    They are read for the first document that is compared. texts, too_short: number of each set's texts, and of those
    with fewer words, which are in no document.
    """

    def __init__(self, sets: dict[str, Corpus], length: int):
        self.sets, self.length, self.texts, self.too_short = sets, length, {}, {}

    def identity(self) -> list:
        return [self.length, *(corpus.identity() for corpus in self.sets.values())]

    @cached_property
    def _hashes(self) -> dict[str, np.ndarray]:
        hashes = {}
        for name, corpus in self.sets.items():
            found = [sequences_of(words_of(document.text), self.length) for document in corpus.documents()]
            self.texts[name], self.too_short[name] = len(found), sum(not len(one) for one in found)
            hashes[name] = np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)
        return hashes

    def shared(self, words: list[str]) -> dict[str, tuple[np.ndarray, list[str]]]:
        """set -> (hashes of the sequences that stand in it, too; the words in a row that these make up), if any do."""
        own, found = sequences_of(words, self.length), {}
        for name, hashes in self._hashes.items():
            places = np.flatnonzero(_are_in(own, hashes))
            if len(places):
                found[name] = own[places], [" ".join(words[a:b]) for a, b in self._runs(places)]
        return found

    def _runs(self, places: np.ndarray) -> Iterator[tuple[int, int]]:
        """(first word, place behind the last one) of sequences that follow or overlap each other."""
        breaks = np.flatnonzero(np.diff(places) > self.length) + 1
        for run in np.split(places, breaks):
            yield int(run[0]), int(run[-1]) + self.length


def _are_in(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    if not len(ordered):
        return np.zeros(len(values), bool)
    return ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values


def shared_notes(sets: dict[str, dict[str, Any]], length: int, file: str) -> list[str]:
    """A sentence for each test set, with the first texts in common below it. file: where all of them stand."""
    notes = []
    for name, own in sets.items():
        short = f", {own['too_short']:,} of fewer than {length} words" if own["too_short"] else ""
        head = f"test set {name} ({counted(own['texts'], 'text')}{short}): "
        if not own["documents"]:
            notes.append(f"{head}no {length} words in a row are in the source")
            continue
        head += f"{counted(own['sequences'], 'sequence')} of {length} words in {counted(own['documents'], 'document')}"
        notes.append("\n".join([f"{head}; all in the cache, {file}", *own["listed"]]))
    return notes
