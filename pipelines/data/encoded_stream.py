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
from .token_store import count_words

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
        before, after = ([] if one is None else [np.array([one], self.dtype)] for one in (self.bos, self.eos))
        around = len(before) + len(after)
        tokens = np.concatenate([part for own in ids for part in (*before, own.astype(self.dtype), *after)])
        sizes = {"num_bytes": sum(len(text.encode()) for text in texts), "num_words": sum(map(count_words, texts))}
        sizes["control_tokens"] = self.control.count(texts)
        return Encoded(tokens, [len(own) + around for own in ids], sizes)


def encoded_stream(
    corpus: Corpus,
    *,
    encoder: Encoder,
    framing: Framing,
    size: float = math.inf,
    first: int = 0,
    start: Border = BEGINNING,
    wanted: Callable[[int], bool] = lambda number: True,
) -> Iterator[Encoded | Border]:
    """A pass over the corpus, cut into shards of `size` bytes of text, each ending after the document that fills it.

    Gives Encoded after Encoded, and a Border where a shard ends, of every shard. Raises UserError where the corpus
    cannot be read.

    first: number of the shard that begins at `start`. wanted: whether the documents of a shard are encoded, by its
    number; those of others are read and passed over.
    """

    def given(future: Future | None, border: Border | None) -> Iterator[Encoded | Border]:
        if future is not None:
            yield future.result()
        if border is not None:
            yield border

    coming: deque[tuple[Future | None, Border | None]] = deque()
    with ThreadPoolExecutor(1) as thread:  # whose tokenizer takes all cores, while this one reads and writes
        for group, border in _groups(corpus, size, first, start, wanted):
            if len(coming) > 2:
                yield from given(*coming.popleft())
            encoding = thread.submit(lambda texts: framing(texts, encoder.encode(texts)), group) if group else None
            coming.append((encoding, border))
        for each in coming:
            yield from given(*each)


def _groups(
    corpus: Corpus, most: float, number: int, start: Border, wanted: Callable[[int], bool]
) -> Iterator[tuple[list[str], Border | None]]:
    """The texts of the wanted documents in groups of about half a million characters, each with the border at its end,
    where a shard ends there."""

    def border(place: Any) -> Border:
        tally = corpus.tally()
        return Border(place, tally if start.tally is None else corpus.together(start.tally, tally))

    filled, group, size = 0, [], 0
    for document, place in corpus.documents_from(start.place):
        filled += len(document.text.encode())
        if wanted(number):
            group.append(document.text)
            size += len(document.text)
        if filled >= most:
            yield group, border(place)
            number, filled, group, size = number + 1, 0, [], 0
        elif size >= _GROUP:
            yield group, None
            group, size = [], 0
    yield group, border(None)
