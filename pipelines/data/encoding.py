"""Documents to token ids: fast, exact, and without holding a long text's tokens as objects."""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from ..lazy import tokenizers, transformers
from ..tokenizers.control_tokens import text_backend
from ..tokenizers.load import tokenizer_fingerprint
from .documents import Document, in_batches

_BATCH = 500_000  # characters encoded at once, enough to keep all cores busy
_PIECE = 200_000  # characters; a longer text is encoded in pieces, in parallel
_WINDOW = 1000  # characters on either side of a cut whose tokens must not change
_TRIES = 16


class Encoder:
    """Encodes texts without adding special tokens; those written in a text are plain text (control_tokens.py).

    A long text is cut at line breaks where the tokens of the thousand characters on either side are the same with the
    cut and without it. So the result equals one call on the whole text, also with tokenizers that treat the beginning
    or end of a text specially. A text without such a line break is encoded whole.
    """

    def __init__(self, tokenizer: "transformers.PreTrainedTokenizerFast"):
        self._own = tokenizer.backend_tokenizer
        self.fingerprint = tokenizer_fingerprint(tokenizer)

    @cached_property
    def _backend(self) -> "tokenizers.Tokenizer":
        return text_backend(self._own)

    def encode_documents(self, documents: Iterable[Document]) -> Iterator[np.ndarray]:
        """The ids (uint32) of each document, in the given order. Holds about half a million characters at a time."""
        for batch in in_batches(documents, _BATCH, lambda document: len(document.text)):
            yield from self.encode([document.text for document in batch])

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        pieces = [self._pieces(text) for text in texts]
        flat = self._encode_pieces([piece for parts in pieces for piece in parts])
        return [np.concatenate([next(flat) for _ in parts]) for parts in pieces]

    def _encode_pieces(self, pieces: list[str]) -> Iterator[np.ndarray]:
        # An encoding holds about a hundred bytes per token until its ids are taken out.
        for group in in_batches(pieces, _BATCH, len):
            for encoding in self._backend.encode_batch_fast(group, add_special_tokens=False):
                yield np.array(encoding.ids, dtype=np.uint32)

    def _pieces(self, text: str) -> list[str]:
        pieces, start = [], 0
        while len(text) - start > 2 * _PIECE:
            cut = self._exact_cut(text, start + _PIECE)
            if cut is None:
                break
            pieces.append(text[start:cut])
            start = cut
        pieces.append(text[start:])
        return pieces

    def _exact_cut(self, text: str, position: int) -> int | None:
        """A place at or after `position` where the text can be cut, or None."""
        for _ in range(_TRIES):
            position = text.find("\n", position) + 1
            if position == 0 or position >= len(text):
                return None
            left, right = text[max(position - _WINDOW, 0) : position], text[position : position + _WINDOW]
            whole, *parts = self._backend.encode_batch_fast([left + right, left, right], add_special_tokens=False)
            if whole.ids == parts[0].ids + parts[1].ids:
                return position
        return None
