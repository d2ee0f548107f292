"""Packing: rows of a fixed length from documents of any length, without padding between them.

A row is a slice of `length` tokens of the stream of documents; position_ids say which tokens belong together.
Objectives that predict the next token need context for each row's first token: where a row's end cuts a document, the
next row repeats the last token before the cut, so that each token with a predecessor in its document is predicted from
it exactly once. For all other objectives the slices follow each other without repetition.
"""

from collections import deque
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..errors import UserError
from ..storage.cache import sha
from ..words import counted
from .batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS, document_parts
from .documents import Corpus
from .encoding import Encoder
from .rows import Rows, Streamed
from .shuffled_documents import FILES_AT_ONCE, shuffled_documents
from .token_store import TokenStore, framed, framing_tokens

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
    """Rows of `sequence_length` tokens (T): dicts of int64 tensors of shape (T,), input_ids, labels, position_ids.

    Documents follow each other in corpus order and are cut at a row's end; the next row then begins with the last token
    of the row before, so that over all rows every token is predicted from its predecessor in the document exactly once.
    labels are aligned with input_ids (the model shifts them); -100 stands for the first token of each document part and
    for padding. position_ids restart at 0 with each document part, by which models tell documents apart.

    tail: a last row that is not full is left out (`drop`) or filled up with pad_token_id (`pad`).
    shifts_labels: False for objectives with context on both sides: rows follow each other without the repeated token,
    and labels are all tokens of the row (-100 for padding alone), from which the objective's collator chooses.
    overlap: with shifts_labels, the tokens that a row repeats of the row before. They are context alone: their labels
    are -100, so that each token is still predicted once, from at least `overlap` tokens before it where its document
    has so many.
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


class StreamingPackedDataset(Streamed, IterableDataset):
    """The same rows as PackedDataset's, tokenised while they are read; nothing is stored.

    An iteration is one pass, which `set_epoch` numbers; training reads pass after pass (cursor.py). With several
    workers only the first one yields, so that the order is the same for any number of them; it still tokenises in
    parallel to training. shuffle_buffer: documents are read in an order that `seed` and the pass determine
    (shuffled_documents.py); None: in corpus order. A row also carries its sample id (`row_ids`, its number in the pass)
    and the pass (`epoch`); both have shape (), and a collator's randomness depends on them.
    Raises UserError as PackedDataset does; for a stream that ends before the first row, when it is iterated.
    """

    is_packed = True

    def __init__(
        self,
        corpus: Corpus,
        tokenizer,
        sequence_length: int,
        tail: Tail = "drop",
        *,
        add_bos: bool,
        add_eos: bool,
        shifts_labels: bool = True,
        shuffle_buffer: int | None = None,
        seed: int = 0,
    ):
        self.corpus, self.sequence_length, self.tail = corpus, sequence_length, tail
        self.name = corpus.name
        self.shifts_labels = shifts_labels
        # Shared memory: workers that outlive an epoch (persistent_workers) have a copy of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self.pad_token_id = tokenizer.pad_token_id or 0
        self._bos, self._eos = framing_tokens(tokenizer, add_bos=add_bos, add_eos=add_eos)
        self._encoder = Encoder(tokenizer)
        self._buffer, self._seed = shuffle_buffer, seed
        self.fingerprint = sha([corpus.fingerprint(), self._encoder.fingerprint, self._bos, self._eos])

    @property
    def num_places(self) -> int:
        return min(FILES_AT_ONCE, self.corpus.num_shards) if self._buffer else 1

    def report(self) -> dict:
        return {"stream": self.identity}

    @property
    def identity(self) -> str:
        """The corpus's fingerprint: rows are not stored, so settings of the packing are compared as settings."""
        return self.corpus.fingerprint()

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        """The documents are numbered within the row; each begins where the positions restart."""
        if row is None:
            return []
        parts = document_parts(row["position_ids"].numpy())
        return [(part, 0, end - begin) for part, (begin, end) in enumerate(parts)]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; Trainer and accelerate call this."""
        self._epoch.fill_(epoch)

    def __iter__(self):
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            yield from (row for row, _ in self.pass_from(int(self._epoch)))

    def pass_from(self, number: int, place: Any = None, seed: int = 0):
        """place: where the row after the latest one begins; no document before it is read.

        rows: how many rows of the pass come before it. document: the corpus's place before the document in which it
        begins. offset: its first token in that document.
        """
        rows = self._rows(number, place or {})
        for row_number, (arrays, document, offset) in enumerate(rows, start=(place or {}).get("rows", 0)):
            ids = {ROW_IDS: torch.tensor(row_number), EPOCH: torch.tensor(number)}
            yield arrays | ids, {"rows": row_number + 1, "document": document, "offset": offset}

    def packing_report(self) -> str:
        return "a stream, tokenised and packed while training"

    def _rows(self, number: int, place: dict):
        """(row, corpus's place before the document in which the next row begins, its first token there) of each row."""
        length, overlap = self.sequence_length, int(self.shifts_labels)
        held, borders = np.empty(0, dtype=np.int64), []  # the unfinished row; where documents begin in it
        rows, total, offset, end = place.get("rows", 0), 0, place.get("offset", 0), None
        for before, after, tokens in self._documents(number, place.get("document")):
            end = after
            total += len(tokens)
            tokens, skipped, offset = tokens[offset:], offset, 0
            if not len(tokens):
                continue
            if len(held) == length:  # it was full at the end of a document: no overlap
                yield self._row(held, borders), before, 0
                rows, held, borders = rows + 1, held[:0], []
            if len(held):
                borders.append(len(held))
            first = skipped - len(held)  # the document's token where `held` begins, if it were all of this document
            held = np.concatenate([held, tokens])
            start = 0
            while len(held) - start > length:
                following = start + length - overlap
                yield self._row(held[start : start + length], borders), before, first + following
                rows, start, borders = rows + 1, following, []
            held = held[start:]
        if len(held) == length or (len(held) and self.tail == "pad"):
            yield self._row(held, borders), end, 0
        elif not rows:
            raise too_short(self.corpus.name, length, total)

    def _documents(self, number: int, place):
        """(the corpus's place before it, the one after it, its tokens int64) of each document from a place on."""
        documents = self.corpus.documents_from
        if self._buffer:
            documents = partial(shuffled_documents, self.corpus, self._buffer, [self._seed, number])
        places = deque([place])  # documents are read ahead of those that are encoded

        def read():
            for document, after in documents(place):
                places.append(after)
                yield document

        for ids in self._encoder.encode_documents(read()):
            yield places.popleft(), places[0], framed(ids, self._bos, self._eos, np.int64)

    def _row(self, tokens: np.ndarray, borders: list[int]) -> dict[str, torch.Tensor]:
        borders = np.array(borders, dtype=np.int64)
        return row(tokens, borders, self.sequence_length, self.pad_token_id, self.shifts_labels)


def too_short(name: str, sequence_length: int, num_tokens: int) -> UserError:
    if num_tokens < 2:
        return UserError(f"data: the text of {name} comes to {num_tokens} tokens; it takes 2 to predict one.")
    return UserError(
        f"objective.sequence_length: a row takes {sequence_length:,} tokens of text, more than the whole text of "
        f"{name} ({num_tokens:,}); lower it, or set objective.tail=pad."
    )
