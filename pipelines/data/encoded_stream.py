"""The documents of a corpus as framed token ids, in order.

A stream can begin anywhere in the corpus and marks where its shards end (tokenization.py).
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tokenizers.control_tokens import ControlTokens
from .account import Account
from .documents import Corpus
from .encoding import Encoder
from .token_store import count_words

_GROUP = 500_000  # characters that are encoded at once


@dataclass(frozen=True)
class Border:
    """The end of a shard. place: where the next document begins (Corpus.documents_from); None: the corpus ends.

    tally: what was counted of the corpus from its beginning to here (Corpus.tally).
    """

    place: Any
    tally: Account


BEGINNING = Border(None, Account())


@dataclass
class Encoded:
    """Some documents as token ids: all tokens (N,), the number of each document's, and sizes and an account, which
    TokenWriter sums."""

    tokens: np.ndarray
    lengths: list[int]
    sizes: dict[str, int]
    account: Account


@dataclass(frozen=True)
class Framing:
    """The ids put before and after each document (None: nothing), the dtype of all ids, and the control tokens."""

    bos: int | None
    eos: int | None
    dtype: str
    control: ControlTokens

    def __call__(self, texts: list[str], ids: list[np.ndarray]) -> Encoded:
        before, after = ([] if one is None else [np.array([one], self.dtype)] for one in (self.bos, self.eos))
        around = len(before) + len(after)
        tokens = np.concatenate([part for document in ids for part in (*before, document.astype(self.dtype), *after)])
        sizes = {"num_bytes": sum(len(text.encode()) for text in texts), "num_words": sum(map(count_words, texts))}
        account = Account()
        account.used("document", number=len(texts))
        for token, number in self.control.count(texts).items():
            account.read_as("control token", token, "ordinary text", number)
        return Encoded(tokens, [len(document) + around for document in ids], sizes, account)


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

    Yields Encoded objects, and a Border at the end of every shard. Raises UserError where the corpus cannot be read.

    first: the number of the shard that begins at `start`. wanted: (number of a shard) -> whether its documents are
    encoded; the documents of other shards are read and dropped.
    """

    def given(future: Future | None, border: Border | None) -> Iterator[Encoded | Border]:
        if future is not None:
            yield future.result()
        if border is not None:
            yield border

    coming: deque[tuple[Future | None, Border | None]] = deque()
    with ThreadPoolExecutor(1) as thread:  # it tokenizes on all cores, while this thread reads and writes
        for group, border in _groups(corpus, size, first, start, wanted):
            if len(coming) > 2:
                yield from given(*coming.popleft())
            encoding = thread.submit(lambda texts: framing(texts, encoder.encode(texts)), group) if group else None
            coming.append((encoding, border))
        for entry in coming:
            yield from given(*entry)


def _groups(
    corpus: Corpus, most: float, number: int, start: Border, wanted: Callable[[int], bool]
) -> Iterator[tuple[list[str], Border | None]]:
    """The wanted documents' texts in groups of about half a million characters, each with the Border of the shard that
    ends with it, or None."""

    filled, group, size = 0, [], 0
    for document, place in corpus.documents_from(start.place):
        filled += len(document.text.encode())
        if wanted(number):
            group.append(document.text)
            size += len(document.text)
        if filled >= most:
            yield group, Border(place, start.tally + corpus.tally())
            number, filled, group, size = number + 1, 0, [], 0
        elif size >= _GROUP:
            yield group, None
            group, size = [], 0
    yield group, Border(None, start.tally + corpus.tally())
