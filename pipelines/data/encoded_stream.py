"""The documents of a corpus as framed token ids, in order.

A stream begins anywhere in the corpus and says where its shards end (tokenization.py).
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tokenizers.control_tokens import ControlTokens
from .documents import Corpus
from .encoding import Encoder
from .token_store import count_words, framed

_GROUP = 500_000  # characters that are encoded at once


@dataclass(frozen=True)
class Border:
    """The end of a shard. place: of the corpus, before the next document (Corpus.documents_from); None: it has ended.

    tally: what the corpus has counted from its beginning to here (Corpus.tally).
    """

    place: Any
    tally: Any


BEGINNING = Border(None, None)


@dataclass
class Encoded:
    """Some documents as token ids: all their tokens (N,), the number of each one's, and what TokenWriter adds up."""

    tokens: np.ndarray
    lengths: list[int]
    sizes: dict[str, Any]


@dataclass(frozen=True)
class Framing:
    """Ids put before and after each document's, None: nothing; the type that holds them all; the control tokens."""

    bos: int | None
    eos: int | None
    dtype: str
    control: ControlTokens

    def __call__(self, texts: list[str], ids: list[np.ndarray]) -> Encoded:
        documents = [framed(own, self.bos, self.eos, self.dtype) for own in ids]
        sizes = {"num_bytes": sum(len(text.encode()) for text in texts), "num_words": sum(map(count_words, texts))}
        sizes["control_tokens"] = self.control.count(texts)
        return Encoded(np.concatenate(documents), list(map(len, documents)), sizes)


class EncodedStream:
    """A pass over the corpus, cut into shards of `size` bytes of text, each ending after the document that fills it.

    first: number of the shard that begins at `start`. wanted: whether the documents of a shard are encoded, by its
    number; those of others are read and passed over.

    Iterated once, it gives Encoded after Encoded, and a Border where a shard ends, of every shard. Raises UserError
    where the corpus cannot be read.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        encoder: Encoder,
        framing: Framing,
        size: float = math.inf,
        first: int = 0,
        start: Border = BEGINNING,
        wanted: Callable[[int], bool] = lambda number: True,
    ):
        self.corpus, self.encoder, self.framing = corpus, encoder, framing
        self.size, self.first, self.start, self.wanted = size, first, start, wanted

    def __iter__(self) -> Iterator[Encoded | Border]:
        coming: deque[tuple[Future | None, Border | None]] = deque()
        with ThreadPoolExecutor(1) as thread:  # whose tokenizer takes all cores, while this one reads and writes
            for group, border in self._groups():
                if len(coming) > 2:
                    yield from _given(*coming.popleft())
                coming.append((thread.submit(self._encode, group) if group else None, border))
            for each in coming:
                yield from _given(*each)

    def _encode(self, texts: list[str]) -> Encoded:
        return self.framing(texts, self.encoder.encode(texts))

    def _groups(self) -> Iterator[tuple[list[str], Border | None]]:
        """The texts of the wanted documents in groups of about half a million characters, each with the border at its
        end, where a shard ends there."""
        number, filled, group, size = self.first, 0, [], 0
        for document, place in self.corpus.documents_from(self.start.place):
            filled += len(document.text.encode())
            if self.wanted(number):
                group.append(document.text)
                size += len(document.text)
            if filled >= self.size:
                yield group, Border(place, self._tally())
                number, filled, group, size = number + 1, 0, [], 0
            elif size >= _GROUP:
                yield group, None
                group, size = [], 0
        yield group, Border(None, self._tally())

    def _tally(self) -> Any:
        tally = self.corpus.tally()
        return tally if self.start.tally is None else self.corpus.together(self.start.tally, tally)


def _given(future: Future | None, border: Border | None) -> Iterator[Encoded | Border]:
    if future is not None:
        yield future.result()
    if border is not None:
        yield border
