"""Documents that share sequences of words with test sets, or nearly all of them with an earlier document."""

import hashlib
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..errors import UserError
from ..plugins import objective_of
from ..recipes.compose import load_recipe
from ..recipes.data_section import CleanSettings
from ..recipes.recipe_files import is_file_of, shipped
from ..recipes.suite_file import read_suite
from ..words import counted
from .documents import Corpus, Limits
from .examples import SourceCorpus
from .file_reader import FileReader
from .reader import TextView
from .remote_files import with_local_copies

FIELD = "data.clean.decontaminate"
WORDS = 5  # in a row, as Lee et al. 2022 compare documents
HASHES = 256  # the estimate's standard deviation is at most 1 / (2 * sqrt(256)): 0.03
MISSED = 0.9  # weight of missed pairs against false candidates in choosing bands: candidates are compared anyway
_WORD = re.compile(r"\w+")
_BASE = 0x9E3779B97F4A7C15  # odd, so that no word of a sequence is lost modulo 2^64


@lru_cache(maxsize=2**19)
def _hash_of(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation (as Brown et al. 2020, appendix C, compares texts)."""
    return _WORD.findall(text.lower())


def sequences_of(words: list[str], length: int) -> np.ndarray:
    """A 64-bit hash of each `length` words in a row, uint64 (words - length + 1,): the same in every process."""
    number = len(words) - length + 1
    if number <= 0:
        return np.empty(0, np.uint64)
    hashes = np.fromiter(map(_hash_of, words), np.uint64, len(words))
    combined = np.zeros(number, np.uint64)
    for place in range(length):
        combined = combined * np.uint64(_BASE) + hashes[place : place + number]
    return combined


class NearDuplicates:
    """Finds documents similar to an earlier one: with a Jaccard similarity of at least `threshold`.

    By MinHash (Broder 1997) and bands of it; takes about 2 kB of memory for each document.
    """

    def __init__(self, threshold: float):
        from datasketch import MinHash, MinHashLSH

        self.threshold, self._hashes = threshold, []
        self._empty = MinHash(HASHES, seed=1, hashfunc=int)
        self._bands = MinHashLSH(threshold, HASHES, weights=(1 - MISSED, MISSED))

    def was_there(self, words: list[str]) -> bool:
        """Whether a document with these words is similar to an earlier one; if not, later ones are compared with it."""
        if not words:
            return False
        signature = self._empty.copy()
        signature.update_batch((sequences_of(words, min(WORDS, len(words))) >> np.uint64(32)).tolist())
        earlier = self._bands.query(signature)
        if any(np.mean(signature.hashvalues == self._hashes[number]) >= self.threshold for number in earlier):
            return True
        self._bands.insert(len(self._hashes), signature)
        self._hashes.append(signature.hashvalues.astype(np.uint32))
        return False


def open_test_sets(clean: CleanSettings, limits: Limits, text_field: str, cache_dir: str | None) -> "TestSets":
    """The test sets with which documents must not share words; their texts are not read yet.

    Files with rows are read by `text_field`, others paragraph by paragraph. Raises UserError for a name that is neither
    a file, a recipe nor a suite, and for a recipe without text or without test data.
    """
    corpora: dict[str, Corpus] = {}
    for name in clean.decontaminate:
        if is_file_of(name, "suites", "suite"):
            for task in read_suite(name).tasks:
                corpora[f"{name}: {task.title}"] = _of_recipe(task.recipe, task.settings, task.split)
        elif name.endswith((".yaml", ".yml")) or name in shipped("recipes"):
            corpora[name] = _of_recipe(name)
        else:
            patterns = with_local_copies(name, FIELD, cache_dir)
            view = TextView(text_field, limits, document="paragraph")
            corpora[name] = SourceCorpus("test", FileReader(FIELD, patterns, view))
    return TestSets(corpora, clean.decontaminate_words)


def _of_recipe(name: str, settings: list[str] = (), split: str | None = None) -> Corpus:
    try:
        objective = objective_of(load_recipe(name, [*settings, "data.clean=null"])).for_rows()
        reads = objective.Reads(objective)
        sources = reads.open()
    except UserError as error:
        raise UserError(f"{FIELD}: {name}: {error}") from error
    split = split or next((split for split in ("test", "validation") if split in sources), None)
    corpus = reads.texts(sources[split]) if split in sources else None
    if corpus is None:
        raise UserError(f"{FIELD}: the recipe {name} has no text of a {split or 'test'} split")
    return corpus


class TestSets:
    """All sequences of `length` words in the texts of each test set.

    The sets are read when the first document is compared. texts, too_short: by set, the number of its texts and of
    those with fewer than `length` words, which are found in no document.
    """

    def __init__(self, sets: dict[str, Corpus], length: int):
        self.sets, self.length, self.texts, self.too_short = sets, length, {}, {}

    def identity(self) -> list:
        return [self.length, *(corpus.identity() for corpus in self.sets.values())]

    @cached_property
    def _hashes(self) -> dict[str, np.ndarray]:
        hashes = {}
        for name, corpus in self.sets.items():
            sequences = [sequences_of(words_of(document.text), self.length) for document in corpus.documents()]
            self.texts[name], self.too_short[name] = len(sequences), sum(not len(one) for one in sequences)
            hashes[name] = np.unique(np.concatenate(sequences)) if sequences else np.empty(0, np.uint64)
        return hashes

    def shared(self, words: list[str]) -> dict[str, tuple[np.ndarray, list[str]]]:
        """{set: (hashes of the sequences shared with it, the texts that these sequences make up)}, if it shares any."""
        sequences, matches = sequences_of(words, self.length), {}
        for name, hashes in self._hashes.items():
            nearest = np.minimum(np.searchsorted(hashes, sequences), len(hashes) - 1)
            places = np.flatnonzero(hashes[nearest] == sequences) if len(hashes) else ()
            if len(places):
                matches[name] = sequences[places], [" ".join(words[a:b]) for a, b in self._runs(places)]
        return matches

    def _runs(self, places: np.ndarray) -> Iterator[tuple[int, int]]:
        """(start, end), in words, of each run of adjacent or overlapping sequences."""
        breaks = np.flatnonzero(np.diff(places) > self.length) + 1
        for run in np.split(places, breaks):
            yield int(run[0]), int(run[-1]) + self.length


def shared_notes(sets: dict[str, dict[str, Any]], length: int, file: str) -> list[str]:
    """A note for each test set, with the first shared texts below it. file: the file with all shared texts."""
    notes = []
    for name, one in sets.items():
        short = f", {one['too_short']:,} of fewer than {length} words" if one["too_short"] else ""
        head = f"test set {name} ({counted(one['texts'], 'text')}{short}): "
        if not one["documents"]:
            notes.append(f"{head}no {length} words in a row are in the source")
            continue
        head += f"{counted(one['sequences'], 'sequence')} of {length} words in {counted(one['documents'], 'document')}"
        notes.append("\n".join([f"{head}; all in the cache, {file}", *one["listed"]]))
    return notes
