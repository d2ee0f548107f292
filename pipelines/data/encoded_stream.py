"""The documents of a corpus as framed token ids, in order: encoded by threads of this process, or in several processes.

A stream begins anywhere in the corpus and says where its shards end (tokenization.py). Text is read by one process;
several encode it. What they return does not depend on how many they are.
"""

import math
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..errors import UserError
from ..tokenizers.control_tokens import ControlTokens
from .documents import Corpus
from .encoding import Encoder
from .token_store import count_words, framed

_GROUP = 500_000  # characters that a process gets at once
_IN_FLIGHT = 64 * _GROUP  # characters that processes may hold at once: memory stays bounded, however many
_PARALLELISM = "TOKENIZERS_PARALLELISM"


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
    number; those of others are read and passed over. num_proc: processes that encode; 1: a thread of this one.

    Iterated once, it gives Encoded after Encoded, and a Border where a shard ends, of every shard. Raises UserError
    where the corpus cannot be read or a process is killed.
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
        num_proc: int = 1,
    ):
        self.corpus, self.encoder, self.framing = corpus, encoder, framing
        self.size, self.first, self.start, self.wanted, self.num_proc = size, first, start, wanted, num_proc

    def __iter__(self) -> Iterator[Encoded | Border]:
        coming, characters = deque(), 0
        with _workers(self.num_proc, self.encoder, self.framing) as submit:
            for group, border in self._groups():
                size = sum(map(len, group))
                while coming and (len(coming) > 2 * self.num_proc or characters + size > _IN_FLIGHT):
                    characters -= coming[0][1]
                    yield from _given(*coming.popleft())
                coming.append((submit(group) if group else None, size, border))
                characters += size
            for each in coming:
                yield from _given(*each)

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


def _given(future: Future | None, size: int, border: Border | None) -> Iterator[Encoded | Border]:
    if future is not None:
        yield future.result()
    if border is not None:
        yield border


@contextmanager
def _workers(number: int, encoder: Encoder, framing: Framing) -> Iterator[Callable[[list[str]], Future]]:
    """What takes texts and gives them encoded later: by a thread of this process, whose tokenizer takes all cores, or
    by several processes; UserError where one of those is killed."""
    from accelerate.utils import patch_environment

    if number == 1:
        with ThreadPoolExecutor(1) as thread:
            yield lambda texts: thread.submit(lambda: framing(texts, encoder.encode(texts)))
        return
    # A fork has the tokenizer at once; elsewhere than on Linux the system's own libraries do not survive one.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(number, context, _start_process, (encoder, framing))
    try:
        with patch_environment(**{_PARALLELISM: "false"}):  # or tokenizers complains of every fork
            pool.submit(int).result()
        yield partial(pool.submit, _encode)
    except BrokenProcessPool:
        raise UserError(
            f"data.num_proc={number}: a process that encodes text was killed, probably for lack of memory; set fewer."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_own: list = []  # in a process that encodes: the encoder and the framing


def _start_process(encoder: Encoder, framing: Framing) -> None:
    os.environ[_PARALLELISM] = "false"  # threads of the tokenizer do not survive a fork, and cores are taken anyway
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _own[:] = encoder, framing
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # returns also where it was killed
    os._exit(1)


def _encode(texts: list[str]) -> Encoded:
    encoder, framing = _own
    return framing(texts, encoder.encode(texts))
