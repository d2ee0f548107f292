"""A corpus as token ids on disk: written once, memory-mapped ever after."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..lazy import transformers
from .account import Account
from .mapped_store import META, MappedStore

_PIECE = 2**17  # offsets, or bytes, that are read at once
TOKENS, OFFSETS = "tokens.bin", "offsets.bin"
SIZES = ("num_bytes", "num_words")


class TokenStore(MappedStore):
    """The framed tokens of a corpus, document after document.

    tokens: memory map of uint16 (vocabularies below 65,536) or uint32, all documents in corpus order.
    offsets: memory map of int64, shape (documents + 1,): document d is tokens[offsets[d]:offsets[d + 1]].
    num_bytes: of the text, in UTF-8. num_words: words between white space plus one per line, blank lines included:
    WikiText's convention, which word-level perplexity divides by.
    """

    kind = "tokens"

    def _open(self, meta: dict[str, Any]) -> None:
        self.num_tokens, self.num_documents = meta["num_tokens"], meta["num_documents"]
        self.num_bytes, self.num_words = meta["num_bytes"], meta["num_words"]
        # A file without bytes cannot be mapped.
        empty = np.empty(0, dtype=meta["dtype"])
        self.tokens = np.memmap(self.folder / TOKENS, dtype=meta["dtype"], mode="r") if self.num_tokens else empty
        self.offsets = np.memmap(self.folder / OFFSETS, dtype=np.int64, mode="r")

    def document(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def framing_tokens(
    tokenizer: "transformers.PreTrainedTokenizerFast", *, add_bos: bool, add_eos: bool
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
    before, after = (np.array([] if token is None else [token], dtype) for token in (bos, eos))
    return np.concatenate([before, ids.astype(dtype), after])


def count_words(text: str) -> int:
    """Words between white space, plus one per line, also for a last line without a line break."""
    lines = text.count("\n") + (not text.endswith("\n"))
    return len(text.split()) + lines


class Encoded(NamedTuple):
    """Some documents as framed token ids, the sizes of their texts, and their account."""

    documents: list[np.ndarray]
    num_bytes: int
    num_words: int
    account: Account


class TokenWriter:
    """Writes the files of a store into a folder, a few documents at a time; `finish` completes it.

    account: of the text so far. Memory does not grow with what was written.
    """

    def __init__(self, folder: Path, dtype: str):
        self.folder, self.dtype = folder, dtype
        self.num_tokens = self.num_documents = 0
        self._sizes = dict.fromkeys(SIZES, 0)
        self.account = Account()

    def __enter__(self) -> "TokenWriter":
        self._tokens = (self.folder / TOKENS).open("wb")
        self._offsets = (self.folder / OFFSETS).open("wb")
        self._offsets.write(np.zeros(1, dtype=np.int64).data)
        return self

    def __exit__(self, *error) -> None:
        self._tokens.close()
        self._offsets.close()

    def add(self, some: Encoded) -> None:
        self._tokens.write(np.concatenate(some.documents).astype(self.dtype, copy=False).data)
        self._add_ends(np.cumsum([len(document) for document in some.documents], dtype=np.int64))
        self._add_sizes(some._asdict(), some.account)

    def add_store(self, folder: Path) -> None:
        """Append the documents of a store with the same dtype."""
        meta = json.loads((folder / META).read_text())
        with (folder / TOKENS).open("rb") as tokens:
            shutil.copyfileobj(tokens, self._tokens, _PIECE)
        with (folder / OFFSETS).open("rb") as offsets:
            offsets.seek(8)  # the beginning of its first document
            base = self.num_tokens
            while len(ends := np.fromfile(offsets, dtype=np.int64, count=_PIECE)):
                self._add_ends(ends + (base - self.num_tokens))
        self._add_sizes(meta, Account.from_json(meta["account"]))

    def _add_ends(self, ends: np.ndarray) -> None:
        """Append the ends of documents, counted from the end of the last one so far."""
        if len(ends):
            self._offsets.write((ends + self.num_tokens).data)
            self.num_tokens += int(ends[-1])
            self.num_documents += len(ends)

    def _add_sizes(self, sizes: dict[str, Any], account: Account) -> None:
        self.account.update(account)
        for name in SIZES:
            self._sizes[name] += sizes[name]

    def finish(self, fingerprint: str, name: str, **more: Any) -> None:
        """Write meta.json. more: further entries, such as `tally` of a shard."""
        counts = {"dtype": self.dtype, "num_tokens": self.num_tokens, "num_documents": self.num_documents}
        counts |= {**self._sizes, "account": self.account.to_json()}
        meta = {"fingerprint": fingerprint} | counts | {"name": name} | more
        (self.folder / META).write_text(json.dumps(meta, indent=1))
