"""Rows of two segments: pieces of documents that are cut in two, or whose second half is taken from elsewhere.

A piece is a run of whole sentences of one document, as many as fit. Where sentences end is read off the tokens
(tokenizers/word_marks.py). A sentence that does not fit is cut between two words; so is a piece of one sentence, to
give two segments.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from ..errors import UserError
from ..storage.cache import sha
from ..tokenizers.word_marks import WordMarks
from .rows import Rows
from .token_store import TokenStore

Kind = Literal["next_sentence", "sentence_order"]
_FORMAT = 1  # raise it when the way to make pairs changes


@dataclass(frozen=True)
class Pair:
    """Two segments, each (first token, token after its last one) of the store, and the label.

    label: 0 where the second one follows the first in its document, else 1.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    label: int


class SentencePairRows(Rows, Dataset):
    """Pieces of at most `length` tokens, from which pairs of segments are made: dicts of input_ids, labels: int64 (n,).

    Both are the piece's tokens; a row with labels of -100 only fills up a batch. A row also carries `piece`, its
    number, and `rows`, this object, because `pair` draws a new pair in each epoch. The pieces of a document follow
    each other without gaps; one of a single token is left out.

    store: tokens of documents without special tokens around them. marks: of the tokenizer's vocabulary. kind:
    next_sentence: a wrong second segment is of another document (Devlin et al. 2019, section 3.1); sentence_order: a
    wrong pair is the two segments in swapped order (Lan et al. 2020, section 3.1).
    Raises UserError where no pair can be made, or next_sentence has no other document.
    """

    def __init__(self, store: TokenStore, marks: WordMarks, length: int, kind: Kind):
        self.store, self.marks, self.length, self.kind = store, marks, length, kind
        self.name, self.account = store.name, store.account
        self.offsets = np.unique(store.offsets)  # without documents that have no tokens
        starts = np.union1d(self.offsets[:-1], marks.sentence_starts(store.tokens))
        self.starts = cut_long(starts, int(self.offsets[-1]), store.tokens, marks, length)
        self.pieces = pieces_of(self.starts, self.offsets, length)  # (pieces, 2): first token, token after the last one
        if not len(self.pieces):
            raise UserError(
                f"data: the text of {self.name} comes to {store.num_tokens} tokens; it takes 2 of one document to make "
                f"a pair"
            )
        self.document_of = np.searchsorted(self.offsets, self.pieces[:, 0], side="right") - 1
        if kind == "next_sentence" and self.document_of[0] == self.document_of[-1]:
            raise UserError(
                f"objective.pairs=next_sentence takes second segments from other documents, but {self.name} has one "
                f"document with text; set data.document=line or paragraph, or objective.pairs=sentence_order"
            )
        self.row_lengths = self.pieces[:, 1] - self.pieces[:, 0]
        # Without `kind`: training may continue with other pairs of the same text; the settings record the kind.
        self.fingerprint = sha([store.fingerprint, "sentence pairs", _FORMAT, length])

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict:
        piece = self.inside(index)
        tokens = torch.from_numpy(self.tokens(tuple(self.pieces[piece])))
        return {"input_ids": tokens, "labels": tokens.clone(), "piece": int(piece), "rows": self}

    def segment(self, place: tuple[int, int]) -> np.ndarray:
        """The tokens of a segment, int64. A first token without a leading space, as at a document's beginning, gets
        one: its absence would tell which segment came first."""
        tokens = self.tokens(place)
        tokens[0] = self.marks.after_space[tokens[0]]
        return tokens

    def tokens(self, place: tuple[int, int]) -> np.ndarray:
        """The tokens from one place of the store to another, int64."""
        return np.array(self.store.tokens[place[0] : place[1]], dtype=np.int64)

    @property
    def stores(self) -> list[TokenStore]:
        return [self.store]

    @property
    def facts(self) -> dict:
        """Sizes of the split, as plain numbers; an example is a pair."""
        store = self.store
        return {
            "documents": len(self.offsets) - 1,
            "examples": len(self),
            "tokens": store.num_tokens,
            "bytes": store.num_bytes,
        }

    def document(self, place: int) -> int:
        """The document of a token of the store, counted among those with text."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1

    def pair(self, number: int, generator: np.random.Generator) -> Pair:
        """A pair of segments made of one piece, half of them with label 1; it depends on the generator alone."""
        begin, end = (int(place) for place in self.pieces[number])
        sentences = self.starts[np.searchsorted(self.starts, begin + 1) : np.searchsorted(self.starts, end)]
        middle = int(generator.choice(sentences if len(sentences) else self._words(begin, end)))
        first, second = (begin, middle), (middle, end)
        if generator.random() < 0.5:
            return Pair(first, second, 0)
        if self.kind == "sentence_order":
            return Pair(second, first, 1)
        return Pair(first, self._elsewhere(number, first, second, generator), 1)

    def _words(self, begin: int, end: int) -> np.ndarray:
        """The places after the first token where words begin; all places where none does."""
        starts = np.flatnonzero(self.marks.word_starts(self.tokens((begin, end)))[1:])
        return begin + 1 + (starts if len(starts) else np.arange(end - begin - 1))

    def _elsewhere(self, number: int, first: tuple, second: tuple, generator) -> tuple[int, int]:
        """Sentences of another document that only their content gives away: they are nearly as long as the true
        segment, and begin within a sentence if it does.

        Documents are drawn in proportion to their pieces; one of the document's runs of sentences is drawn, from the
        third of them that is nearest to the true segment's length.
        """
        bounds = np.searchsorted(self.document_of, self.document_of[number] + np.array([0, 1]))
        drawn = int(generator.integers(len(self) - (bounds[1] - bounds[0])))
        drawn += int(bounds[1] - bounds[0]) if drawn >= bounds[0] else 0
        begin, end = (int(place) for place in self.offsets[self.document_of[drawn] + np.array([0, 1])])
        target, most = second[1] - second[0], self.length - (first[1] - first[0])
        borders = np.append(self.starts[np.searchsorted(self.starts, begin) : np.searchsorted(self.starts, end)], end)
        if second[0] not in self.starts[np.searchsorted(self.starts, second[0]) :][:1]:  # within a sentence
            enough = borders[borders - target >= begin]
            stop = int(generator.choice(enough)) if len(enough) else end
            words = self._words(max(begin, stop - 2 * most), stop) if stop - begin > 1 else np.array([begin])
            words = words[stop - words <= most]
            return (int(words[np.argmin(np.abs(stop - words - target))]) if len(words) else stop - 1), stop
        borders = borders[1:] if len(borders) > 2 else borders  # true segments never begin a document
        starts = borders[:-1]
        after = np.clip(np.searchsorted(borders, starts + target), np.arange(len(starts)) + 1, len(starts))
        before = np.maximum(after - 1, np.arange(len(starts)) + 1)
        sizes = np.stack([borders[before] - starts, borders[after] - starts])
        errors = np.where(sizes <= most, np.abs(sizes - target), np.inf)
        best, error = errors.argmin(axis=0), errors.min(axis=0)
        fitting = np.argsort(error, kind="stable")[: np.isfinite(error).sum()]
        if not len(fitting):  # no sentence of this document is short enough
            start = int(generator.choice(starts))
            return start, min(start + target, end)
        chosen = int(generator.choice(fitting[: -(-len(fitting) // 3)]))
        return int(starts[chosen]), int(starts[chosen] + sizes[best[chosen], chosen])


def cut_long(starts: np.ndarray, total: int, tokens, marks: WordMarks, length: int) -> np.ndarray:
    """Where sentences begin and, in sentences of more than `length` tokens, parts of at most `length`.

    A part ends at the last end of a word that fits, or after `length` tokens where it is all one word.
    """
    ends = np.append(starts[1:], total)
    added = []
    for place in np.flatnonzero(ends - starts > length):
        begin, end = int(starts[place]), int(ends[place])
        words = begin + np.flatnonzero(marks.word_starts(np.asarray(tokens[begin:end], dtype=np.int64)))
        while end - begin > length:
            word = int(words[np.searchsorted(words, begin + length, side="right") - 1])
            begin = word if word > begin else begin + length
            added.append(begin)
    return np.union1d(starts, np.array(added, dtype=np.int64)) if added else starts


def pieces_of(starts: np.ndarray, offsets: np.ndarray, length: int) -> np.ndarray:
    """(pieces, 2) of int64: runs of sentences of one document, as many as fit into `length` tokens each.

    starts: where sentences begin, none longer than `length`. offsets: where documents begin, and the end of the text.
    """
    borders, pieces = np.append(starts, offsets[-1]), []
    for begin, end in zip(*np.searchsorted(borders, [offsets[:-1], offsets[1:]])):
        places, cuts = borders[begin : end + 1], [0]
        while cuts[-1] < len(places) - 1:
            cuts.append(int(np.searchsorted(places, places[cuts[-1]] + length, side="right")) - 1)
        sizes = np.diff(cuts)
        if len(sizes) > 1 and sizes[-1] == 1 and sizes[-2] > 2 and places[-1] - places[-3] <= length:
            cuts[-2] -= 1  # a last sentence alone would have to be cut in two: it gets the one before it
        pieces += [(places[first], places[last]) for first, last in pairwise(cuts) if places[last] - places[first] > 1]
    return np.array(pieces, dtype=np.int64).reshape(-1, 2)
