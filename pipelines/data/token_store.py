"""A corpus as token ids on disk: written once, memory-mapped ever after."""

import json
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..storage.cache import sha
from .documents import Corpus, SkipCounts
from .encoding import Encoder
from .mapped_store import META, MappedStore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FORMAT = 1  # raise it when the files or the way to make them change
_PIECE = 2**20  # offsets compared at once
TOKENS, OFFSETS = "tokens.bin", "offsets.bin"


class TokenStore(MappedStore):
    """The framed tokens of a corpus, document after document.

    tokens: memory map of uint16 (vocabularies below 65,536) or uint32, all documents in corpus order.
    offsets: memory map of int64, shape (documents + 1,): document d is tokens[offsets[d]:offsets[d + 1]].
    num_bytes, num_characters: of the text, in UTF-8. num_words: words between white space plus one per line, blank
    lines included: WikiText's convention, which word-level perplexity divides by.
    skipped: documents that were left out, by reason. notes: sentences of the corpus for users.
    """

    kind = "tokens"

    def _open(self, meta: dict[str, Any]) -> None:
        self.num_tokens: int = meta["num_tokens"]
        self.num_documents: int = meta["num_documents"]
        self.num_bytes: int = meta["num_bytes"]
        self.num_characters: int = meta["num_characters"]
        self.num_words: int = meta["num_words"]
        self.notes: list[str] = meta["notes"]
        self.skipped = SkipCounts(**meta["skipped"])
        # A file without bytes cannot be mapped.
        empty = np.empty(0, dtype=meta["dtype"])
        self.tokens = np.memmap(self.folder / TOKENS, dtype=meta["dtype"], mode="r") if self.num_tokens else empty
        self.offsets = np.memmap(self.folder / OFFSETS, dtype=np.int64, mode="r")

    @classmethod
    def find_fault(cls, folder: Path) -> str | None:
        meta = json.loads((folder / META).read_text())
        offsets = np.memmap(folder / OFFSETS, dtype=np.int64, mode="r")
        ends = [0, meta["num_tokens"]]
        if len(offsets) != meta["num_documents"] + 1 or [int(offsets[0]), int(offsets[-1])] != ends:
            return f"{OFFSETS} does not go with {META}"
        pieces = (offsets[start : start + _PIECE + 1] for start in range(0, len(offsets), _PIECE))
        return f"{OFFSETS} goes backwards" if any((np.diff(piece) < 0).any() for piece in pieces) else None

    def document(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def tokenize_corpus(
    corpus: Corpus,
    tokenizer: "PreTrainedTokenizerFast",
    cache_dir: Path,
    *,
    add_bos: bool,
    add_eos: bool,
    progress: bool,
) -> TokenStore:
    """The tokens of every document, framed as [beginning] tokens [end] where asked for.

    Tokenised once per corpus, tokenizer and framing, under cache_dir/tokens. Raises UserError where the tokenizer has
    no such framing token, a file of the corpus cannot be read, or the cache cannot be written.
    """
    bos, eos = framing_tokens(tokenizer, add_bos=add_bos, add_eos=add_eos)
    encoder = Encoder(tokenizer)
    key = sha([_FORMAT, corpus.fingerprint(), encoder.fingerprint, bos, eos])
    return TokenStore.cached(
        cache_dir, key, lambda work: _write(work, corpus, tokenizer, encoder, bos, eos, key, progress)
    )


def framing_tokens(
    tokenizer: "PreTrainedTokenizerFast", *, add_bos: bool, add_eos: bool
) -> tuple[int | None, int | None]:
    """Ids of the beginning-of-text and end-of-text tokens, None where not asked for. Raises UserError where missing.

    For a tokenizer without the two, such as BERT's, they are its CLS and SEP tokens.
    """
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    begin = tokenizer.cls_token_id if begin is None else begin
    end = tokenizer.sep_token_id if end is None else end
    if add_bos and begin is None:
        raise UserError("objective.add_bos=true needs a tokenizer with a beginning-of-text token; this one has none.")
    if add_eos and end is None:
        raise UserError("objective.add_eos=true needs a tokenizer with an end-of-text token; this one has none.")
    return (begin if add_bos else None), (end if add_eos else None)


def token_dtype(vocabulary: int) -> str:
    """The smallest type that holds every id below `vocabulary`."""
    return "uint16" if vocabulary < 2**16 else "uint32"


def framed(ids: np.ndarray, bos: int | None, eos: int | None, dtype) -> np.ndarray:
    before, after = [] if bos is None else [bos], [] if eos is None else [eos]
    return np.concatenate([before, ids, after]).astype(dtype)


def count_words(text: str) -> int:
    """Words between white space, plus one per line, also for a last line without a line break."""
    lines = text.count("\n") + (not text.endswith("\n"))
    return len(text.split()) + lines


def _write(
    folder: Path,
    corpus: Corpus,
    tokenizer: "PreTrainedTokenizerFast",
    encoder: Encoder,
    bos: int | None,
    eos: int | None,
    fingerprint: str,
    progress: bool,
) -> None:
    # Ids may have gaps, as after added tokens: the greatest one counts, not their number.
    dtype = token_dtype(max(tokenizer.get_vocab().values()) + 1)
    offsets = array("q", [0])
    num_bytes = num_characters = num_words = 0
    with (folder / TOKENS).open("wb") as stream, _Progress(corpus, progress) as bar:
        for document, ids in encoder.encode_documents(corpus.documents(), ahead=True):
            tokens = framed(ids, bos, eos, dtype)
            stream.write(tokens.data)
            offsets.append(offsets[-1] + len(tokens))
            size = len(document.text.encode())
            num_bytes += size
            num_characters += len(document.text)
            num_words += count_words(document.text)
            bar.advance(size)
    (folder / OFFSETS).write_bytes(offsets.tobytes())
    meta = {
        "fingerprint": fingerprint,
        "dtype": dtype,
        "num_tokens": offsets[-1],
        "num_documents": len(offsets) - 1,
        "num_bytes": num_bytes,
        "num_characters": num_characters,
        "num_words": num_words,
        "name": corpus.name,
        "notes": corpus.notes(),
        "skipped": asdict(corpus.skipped),
    }
    (folder / META).write_text(json.dumps(meta, indent=1))


class _Progress:
    """A progress bar over bytes of text, or nothing."""

    def __init__(self, corpus: Corpus, shown: bool):
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._progress = Progress(*columns, TimeRemainingColumn(), disable=not shown, transient=True)
        self._task = self._progress.add_task(f"tokenising {corpus.split}", total=corpus.size_hint())

    def __enter__(self) -> "_Progress":
        self._progress.start()
        return self

    def __exit__(self, *error) -> None:
        self._progress.stop()

    def advance(self, size: int) -> None:
        self._progress.advance(self._task, size)
