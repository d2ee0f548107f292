"""A corpus as token ids on disk: written once, memory-mapped ever after."""

import json
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from ..storage.cache import cached_folder, sha
from .documents import Corpus, SkipCounts
from .encoding import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FORMAT = 1  # raise it when the files or the way to make them change


class TokenStore:
    """The framed tokens of a corpus, document after document.

    tokens: memory map of uint16 (vocabularies below 65,536) or uint32, all documents in corpus order.
    offsets: memory map of int64, shape (documents + 1,): document d is tokens[offsets[d]:offsets[d + 1]].
    num_bytes, num_characters: of the text, in UTF-8. num_words: words between white space plus one per line, blank
    lines included: WikiText's convention, which word-level perplexity divides by.
    skipped: documents that were left out. notes: what the corpus had to say once it was read.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        meta = json.loads((self.folder / "meta.json").read_text())
        self.fingerprint: str = meta["fingerprint"]
        self.num_tokens: int = meta["num_tokens"]
        self.num_documents: int = meta["num_documents"]
        self.num_bytes: int = meta["num_bytes"]
        self.num_characters: int = meta["num_characters"]
        self.num_words: int = meta["num_words"]
        self.name: str = meta["name"]
        self.notes: list[str] = meta["notes"]
        self.skipped = SkipCounts(**meta["skipped"])
        self._dtype = meta["dtype"]
        self._map()

    def _map(self) -> None:
        # A file without bytes cannot be mapped.
        path = self.folder / "tokens.bin"
        empty = np.empty(0, dtype=self._dtype)
        self.tokens = np.memmap(path, dtype=self._dtype, mode="r") if self.num_tokens else empty
        self.offsets = np.memmap(self.folder / "offsets.bin", dtype=np.int64, mode="r")

    def document(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def __getstate__(self) -> dict:
        """Without the maps: a worker process opens the files itself instead of receiving their content."""
        return {name: value for name, value in vars(self).items() if name not in ("tokens", "offsets")}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._map()


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
    folder = cached_folder(
        Path(cache_dir),
        "tokens",
        key,
        lambda work: _write(work, corpus, tokenizer, encoder, bos, eos, key, progress),
        _is_complete,
    )
    return TokenStore(folder)


def framing_tokens(
    tokenizer: "PreTrainedTokenizerFast", *, add_bos: bool, add_eos: bool
) -> tuple[int | None, int | None]:
    """Ids of the beginning-of-text and end-of-text tokens, None where not asked for. Raises UserError where missing.

    A tokenizer that has none of its own but begins a text with CLS and ends it with SEP, as BERT's, gives those.
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
    with (folder / "tokens.bin").open("wb") as stream, _Progress(corpus, progress) as bar:
        for document, ids in encoder.encode_documents(corpus.documents()):
            tokens = framed(ids, bos, eos, dtype)
            stream.write(tokens.data)
            offsets.append(offsets[-1] + len(tokens))
            size = len(document.text.encode())
            num_bytes += size
            num_characters += len(document.text)
            num_words += count_words(document.text)
            bar.advance(size)
    (folder / "offsets.bin").write_bytes(offsets.tobytes())
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
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def _is_complete(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        tokens, offsets = (folder / "tokens.bin").stat().st_size, (folder / "offsets.bin").stat().st_size
        return (tokens, offsets) == (
            meta["num_tokens"] * np.dtype(meta["dtype"]).itemsize,
            (meta["num_documents"] + 1) * 8,
        )
    except (OSError, ValueError, KeyError):
        return False


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
