"""Packed rows of a stream: tokenised while they are read, and, where asked for, in another order in each pass.

datasets' own `IterableDataset.shuffle` does not resume exactly: its state lacks the buffer, which keeps half of its
documents when it is filled again and so may hold any earlier one. Here the buffer is emptied before it is filled again:
a position is the place in each open file where the buffer's documents begin, and the number of those already given.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ..storage.cache import sha
from .batch_keys import EPOCH, ROW_IDS, document_parts
from .documents import Corpus, Document
from .encoding import Encoder
from .packing import Tail, row, too_short
from .rows import Streamed
from .token_store import framed, framing_tokens

FILES_AT_ONCE = 8


class StreamingPackedDataset(Streamed):
    """The same rows as PackedDataset's, tokenised while they are read; nothing is stored.

    shuffle_buffer: documents are read in an order that `seed` and the pass determine (shuffled_documents); None: in
    corpus order. A row also carries its sample id (`row_ids`, its number in the pass) and the pass (`epoch`).
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
        self.pad_token_id = tokenizer.pad_token_id or 0
        self._frame = framing_tokens(tokenizer, add_bos=add_bos, add_eos=add_eos)
        self._encoder = Encoder(tokenizer)
        self._buffer, self._seed = shuffle_buffer, seed
        self.fingerprint = sha([corpus.fingerprint(), self._encoder.fingerprint, *self._frame])

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
            yield places.popleft(), places[0], framed(ids, *self._frame, np.int64)

    def _row(self, tokens: np.ndarray, borders: list[int]) -> dict[str, torch.Tensor]:
        borders = np.array(borders, dtype=np.int64)
        return row(tokens, borders, self.sequence_length, self.pad_token_id, self.shifts_labels)


def shuffled_documents(
    corpus: Corpus, buffer: int, key: list[int], place: dict | None = None
) -> Iterator[tuple[Document, dict]]:
    """The documents of a corpus in blocks of `buffer`, each block shuffled by `key`, each with the place after it.

    A block is filled from FILES_AT_ONCE files in turn, with a document of each; the order in which files are opened is
    shuffled, too. key: integers, such as a seed and the number of the pass.

    place: {"block": number, "given": documents of it so far, "opened": files, "open": [[file, its place], ...]}, the
    last two at the block's beginning; nothing before it is read. None: the beginning.
    """
    begin = place or {"block": 0, "given": 0, "opened": 0, "open": []}
    files = np.random.default_rng(key).permutation(corpus.num_shards).tolist()
    streams: dict[int, Iterator] = {}
    while True:
        block, after = _filled(corpus, buffer, begin, files, streams)
        order = np.random.default_rng([*key, begin["block"]]).permutation(len(block)).tolist()
        for done in range(begin["given"], len(block)):
            is_last = done + 1 == len(block)
            yield block[order[done]], after if is_last else begin | {"given": done + 1}
        if not block:
            return
        begin = after


def _filled(
    corpus: Corpus, buffer: int, begin: dict, files: list[int], streams: dict[int, Iterator]
) -> tuple[list[Document], dict]:
    """(documents of the block that begins here, where the next block begins). streams: of the open files."""
    block, opened, waiting = [], begin["opened"], [list(entry) for entry in begin["open"]]
    while len(block) < buffer:
        while len(waiting) < FILES_AT_ONCE and opened < len(files):
            waiting.append([files[opened], None])
            opened += 1
        if not waiting:
            break
        file, place = entry = waiting.pop(0)
        if file not in streams:
            streams[file] = corpus.shard(file).documents_from(place)
        read = next(streams[file], None)
        if read is None:
            del streams[file]
            continue
        document, entry[1] = read
        block.append(document)
        waiting.append(entry)
    return block, {"block": begin["block"] + 1, "given": 0, "opened": opened, "open": waiting}
