"""Packing: rows of a fixed length from documents of any length, without padding between them.

A row is a slice of `length` tokens of the stream of documents; position_ids say which tokens belong together.
Objectives that predict the next token need context for each row's first token: where a row's end cuts a document, the
next row repeats the last token before the cut, so that each token with a predecessor in its document is predicted from
it exactly once. For all other objectives the slices follow each other without repetition.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from ..errors import UserError
from ..storage.cache import sha
from ..words import counted
from .batch_keys import IGNORE_INDEX
from .example_store import EncodedExamples
from .rows import Rows
from .token_store import TokenStore

Tail = Literal["drop", "pad"]


class RowStarts:
    """The first token of each row, without an array of all rows; `len` is their number. The last row may be short.

    A row begins length - overlap tokens after the one before. With an overlap of one token it begins length tokens
    after a row that ends with its document, since nothing of that document is left to predict: the numbers of those
    rows are all that has to be stored. offsets: (documents + 1,) as in TokenStore.
    """

    def __init__(self, offsets: np.ndarray, length: int, overlap: int):
        self.length, self.stride, self.total = length, length - overlap, int(offsets[-1])
        self._with_document = np.array(self._rows_that_end_with_documents(offsets) if overlap == 1 else [], np.int64)
        done = len(self._with_document)
        row = int(self._with_document[-1]) + 1 if done else 0
        beyond = self.total - (row * self.stride + done) - length  # tokens after this row
        self._count = row + 1 + max(0, -(-beyond // self.stride)) if self.total else 0

    def _rows_that_end_with_documents(self, offsets: np.ndarray) -> list[int]:
        """The numbers of these rows; looks at each document once, not at each row."""
        rows, start, row, place, piece = [], 0, 0, 0, max(2 * self.stride, 256)
        while place < len(offsets):
            ends = offsets[place : place + piece] - (start + self.length)
            hits = np.flatnonzero((ends >= 0) & (ends % self.stride == 0))
            if not len(hits):
                place += piece
                continue
            place += int(hits[0])
            if int(offsets[place]) >= self.total:
                break
            rows.append(row + int(ends[hits[0]]) // self.stride)
            start, row = int(offsets[place]), rows[-1] + 1
        return rows

    def __len__(self) -> int:
        return self._count

    def __call__(self, rows):
        """The first token of a row, or of each row in an array of row numbers."""
        return rows * self.stride + np.searchsorted(self._with_document, rows)


def row(
    tokens: np.ndarray, borders: np.ndarray, length: int, pad: int, shifts_labels: bool = True
) -> dict[str, torch.Tensor]:
    """One row as int64 tensors of shape (length,): input_ids, labels, position_ids.

    tokens: of the row, without padding. borders: indices in the row where documents begin, except 0.
    labels are aligned with the tokens; padding is ignored. With shifts_labels the first token of each document part has
    no context and is ignored, too (transformers' causal models shift these labels). Otherwise labels are all the row's
    tokens, from which a collator chooses. Positions restart with each document part and with the padding.
    """
    filled = len(tokens)
    input_ids = np.full(length, pad, dtype=np.int64)
    input_ids[:filled] = tokens
    labels = np.full(length, IGNORE_INDEX, dtype=np.int64)
    labels[:filled] = tokens
    starts = np.zeros(length, dtype=np.int64)
    starts[borders] = borders
    if filled < length:
        starts[filled] = filled
    if shifts_labels:
        labels[0] = IGNORE_INDEX
        labels[borders] = IGNORE_INDEX
    positions = np.arange(length) - np.maximum.accumulate(starts)
    arrays = {"input_ids": input_ids, "labels": labels, "position_ids": positions}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class PackedDataset(Rows, Dataset):
    """Rows of `sequence_length` tokens, as `row` makes them, of the documents in corpus order.

    tail: a last row that is not full is left out (`drop`) or filled up with pad_token_id (`pad`). overlap: with
    shifts_labels, the tokens that a row repeats of the row before. They are context alone: their labels are -100, so
    that each token is still predicted once, from at least `overlap` tokens before it where its document has so many.
    Raises UserError where no row is left.
    """

    def __init__(
        self,
        store: TokenStore,
        sequence_length: int,
        tail: Tail = "drop",
        pad_token_id: int = 0,
        *,
        shifts_labels: bool = True,
        overlap: int = 1,
    ):
        self.store, self.sequence_length, self.tail = store, sequence_length, tail
        self.shifts_labels, self.overlap = shifts_labels, overlap if shifts_labels else 0
        self.pad_token_id = pad_token_id
        self._starts = RowStarts(store.offsets, sequence_length, self.overlap)
        self._rows = len(self._starts)
        if tail == "drop" and self._rows and self._starts(self._rows - 1) + sequence_length > store.num_tokens:
            self._rows -= 1
        if not self._rows:
            raise too_short(store.name, sequence_length, store.num_tokens)
        layout = {0: ["slices"], 1: []}.get(self.overlap, [f"overlap {self.overlap}"])
        self.fingerprint = sha([store.fingerprint, sequence_length, tail, *layout])
        self.name, self.account = store.name, store.account

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, end = self._bounds(index)
        offsets = self.store.offsets
        first, last = np.searchsorted(offsets, (start + 1, end))
        borders = offsets[first:last] - start
        tokens = self.store.tokens[start:end]
        arrays = row(tokens, borders, self.sequence_length, self.pad_token_id, self.shifts_labels)
        if start and self.overlap > 1:
            arrays["labels"][: self.overlap] = IGNORE_INDEX
        return arrays

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        """The document parts of a row, in order: (index of the document, first token in it, number of tokens)."""
        start, end = self._bounds(number)
        offsets = self.store.offsets
        document = int(np.searchsorted(offsets, start, side="right")) - 1
        parts = []
        while start < end:
            stop = min(int(offsets[document + 1]), end)
            if stop > start:  # a document may have no token at all
                parts.append((document, start - int(offsets[document]), stop - start))
            start, document = stop, document + 1
        return parts

    @property
    def stores(self) -> list[TokenStore]:
        return [self.store]

    @property
    def facts(self) -> dict:
        """Sizes of the split, as plain numbers."""
        store = self.store
        return {
            "documents": len(store.offsets) - 1,
            "tokens": int(store.offsets[-1]),
            "bytes": int(store.num_bytes),
            "words": int(store.num_words),
            "rows": len(self),
            "fill_rate": round(float(self.fill_rate), 6),
        }

    def _bounds(self, index: int) -> tuple[int, int]:
        start = int(self._starts(self.inside(index)))
        return start, min(start + self.sequence_length, self.store.num_tokens)

    @property
    def fill_rate(self) -> float:
        """Share of the positions that hold a token of a document rather than padding."""
        start, end = self._bounds(-1)
        held = (len(self) - 1) * self.sequence_length + end - start
        return held / (len(self) * self.sequence_length)

    @property
    def is_packed(self) -> bool:
        """Whether a row may hold more than one document: whether the rows' text is of several."""
        _, end = self._bounds(-1)
        return int(self.store.offsets[np.searchsorted(self.store.offsets, 1)]) < end

    def packing_report(self) -> str:
        """A line for people: content of the rows, and how full they are."""
        store = self.store
        return (
            f"{counted(len(self), 'row')} of {self.sequence_length} tokens from "
            f"{counted(store.num_documents, 'document')} of {store.name} ({counted(store.num_tokens, 'token')}, "
            f"{store.num_bytes / max(store.num_tokens, 1):.2f} bytes per token), {self.fill_rate:.1%} filled"
        )


def best_fit(lengths: np.ndarray, room: int) -> list[list[int]]:
    """Which examples share a row of `room` tokens: best fit decreasing, as in TRL (Ding et al. 2024, section 3.1).

    The longest example comes first, each into the fullest row that it fits into. Rows are ordered by their first
    example, and the examples of a row by their number. No length may be above `room`.
    """
    rows: list[list[int]] = []
    free: list[int] = []  # the distinct numbers of free tokens in rows, ascending
    with_free: dict[int, list[int]] = defaultdict(list)  # number of free tokens -> rows
    for example in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[example])
        place = bisect_left(free, length)
        if place == len(free):
            number, left = len(rows), room
            rows.append([])
        else:
            left = free[place]
            number = with_free[left].pop()
            if not with_free[left]:
                free.pop(place)
        rows[number].append(example)
        left -= length
        if not with_free[left]:
            insort(free, left)
        with_free[left].append(number)
    return sorted(sorted(examples) for examples in rows)


class PackedExamples(Rows, Dataset):
    """Rows of `length` tokens (T): input_ids, labels, position_ids of shape (T,), padded at the end.

    examples: their input_ids and labels are of equal length, at most T; the first label of an example is ignored,
    because no token stands before it.
    """

    def __init__(self, examples: EncodedExamples, length: int, pad_token_id: int):
        self.examples, self.length, self.pad_token_id = examples, length, pad_token_id
        self._lengths = examples.row_lengths // 2  # of input_ids and labels together
        self._rows = best_fit(self._lengths, length)
        self.fingerprint = sha([examples.fingerprint, length, "whole examples"])
        self.name, self.account = examples.name, examples.account
        self.is_packed = any(len(members) > 1 for members in self._rows)
        filled = int(self._lengths.sum()) / (len(self._rows) * length)
        self.facts = examples.facts | {"rows": len(self._rows), "fill_rate": round(filled, 6)}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        members = [self.examples[number] for number in self._rows[index]]
        tokens, labels = (torch.cat([example[name] for example in members]) for name in ("input_ids", "labels"))
        borders = np.cumsum([len(example["input_ids"]) for example in members])[:-1]
        packed = row(tokens.numpy(), borders, self.length, self.pad_token_id)
        packed["labels"][: len(labels)][labels == IGNORE_INDEX] = IGNORE_INDEX
        return packed

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        return [(example, 0, int(self._lengths[example])) for example in self._rows[number]]

    def texts(self, column: str) -> list[str]:
        """A column of raw texts, in the order of the examples."""
        return self.examples.texts(column)


def too_short(name: str, sequence_length: int, num_tokens: int) -> UserError:
    if num_tokens < 2:
        return UserError(f"data: the text of {name} comes to {num_tokens} tokens; it takes 2 to predict one.")
    return UserError(
        f"objective.sequence_length: a row takes {sequence_length:,} tokens of text, more than the whole text of "
        f"{name} ({num_tokens:,}); lower it, or set objective.tail=pad."
    )
