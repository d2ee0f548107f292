"""Rows with another model's answers to them, which are computed once and kept in the cache."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..errors import UserError
from ..storage.cache import cached_folder, sha
from ..words import counted, say, watched
from .documents import in_batches
from .mapped_store import META, MappedStore
from .rows import Rows
from .token_store import token_dtype

FILE = "reference.npy"
ANSWERS = "answers"  # a folder of the cache
TEXTS_AT_ONCE = 512
REFERENCE = "reference"  # key of a row and of a batch


class WithMore(Rows, Dataset):
    """Rows with further values in each. A subclass adds them in `__getitem__`. key: identity of what they depend on."""

    def __init__(self, rows, key: str):
        self.rows, self.fingerprint, self.name, self.facts = rows, sha([rows.fingerprint, key]), rows.name, rows.facts
        self.account = rows.account

    def __len__(self) -> int:
        return len(self.rows)


class WithReference(WithMore):
    """The rows of an encoded split, each with `reference`: float32 of shape (K,)."""

    def __init__(self, rows, numbers: np.ndarray, key: str):
        super().__init__(rows, key)
        self.numbers, self.row_lengths = numbers, rows.row_lengths

    @classmethod
    def cached(cls, rows, cache: Path, key: str, compute: Callable[[], np.ndarray]) -> "WithReference":
        """The rows with the numbers of cache/reference/key, which `compute` computes where they are missing."""
        folder = cached_folder(Path(cache), "reference", key, lambda work: np.save(work / FILE, compute()))
        return cls(rows, np.load(folder / FILE), key)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index] | {REFERENCE: torch.from_numpy(self.numbers[index])}

    def texts(self, column: str) -> list[str]:
        """A column of raw texts, in the order of the rows."""
        return self.rows.texts(column)


def answered(asked: list, cache: Path, key: str, teacher: str, answer: Callable[[list], np.ndarray]) -> np.ndarray:
    """(N, K) float32: the answers to N texts or pairs of texts; those that a killed run left in the cache are reused.

    key: identity of what the answers depend on beside the texts. teacher: its name. answer: some of `asked` -> (M, K).
    """
    chunks = list(in_batches(asked, TEXTS_AT_ONCE))
    keys = [sha([key, chunk]) for chunk in chunks]
    missing = sum(len(chunk) for chunk, entry in zip(chunks, keys) if not (cache / ANSWERS / entry).exists())
    if missing:
        say([f"teacher {teacher}: its answers to {counted(missing, 'example')} go into the cache"])

    def stored(number: int) -> np.ndarray:
        def build(work: Path) -> None:
            np.save(work / FILE, answer(chunks[number]))

        return np.load(cached_folder(cache, ANSWERS, keys[number], build) / FILE)

    return np.concatenate([stored(number) for number in watched(range(len(chunks)), f"teacher, {TEXTS_AT_ONCE} texts")])


SHARD_BYTES = 2**26
TOP_IDS, LOG_PROBS = "teacher_ids", "teacher_log_probs"  # keys of a row: (T, K) int64 and (T, K + 1) float32
LEAST = -1e4  # smallest log-probability stored in half precision

Answer = Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]]


def bytes_of_token(top_k: int, vocabulary: int) -> int:
    """The bytes of K ids, and of K + 1 log-probabilities in half precision."""
    return top_k * np.dtype(token_dtype(vocabulary)).itemsize + 2 * (top_k + 1)


class TeacherShard(MappedStore):
    """ids: (rows, T, K). log_probs: (rows, T, K + 1) float16, those of the ids and of all other tokens together."""

    def _open(self, meta: dict[str, Any]) -> None:
        rows, width, top_k = meta["shape"]
        self.ids = np.memmap(self.folder / "ids.bin", dtype=meta["dtype"], mode="r", shape=(rows, width, top_k))
        self.log_probs = np.memmap(
            self.folder / "log_probs.bin", dtype=np.float16, mode="r", shape=(rows, width, top_k + 1)
        )


class WithTopTokens(WithMore):
    """Packed rows, each with a teacher's TOP_IDS and LOG_PROBS at each of its places.

    each: number of rows per shard; the last one may have fewer. key: identity of what the answers were computed from.
    """

    def __init__(self, rows: Rows, shards: list[TeacherShard], each: int, key: str):
        super().__init__(rows, key)
        self.shards, self.each, self.sequence_length = shards, each, rows.sequence_length
        self.is_packed, self.stores = rows.is_packed, rows.stores

    @classmethod
    def cached(
        cls, rows: Rows, cache: Path, key: str, answer: Answer, batch: int, teacher: str, *, width, top_k, vocabulary
    ) -> "WithTopTokens":
        """The rows with the teacher's answers, from the cache or computed by `answer` where they are missing there.

        answer: numbers of at most `batch` rows -> their ids and log-probabilities. teacher: its name. width: T.
        Raises UserError where the disk has no room for them.
        """
        size = width * bytes_of_token(top_k, vocabulary)
        per_shard = max(1, SHARD_BYTES // size)
        starts, kind, dtype = range(0, len(rows), per_shard), f"teacher/{key}", token_dtype(vocabulary)
        names = {start: f"{start // per_shard:06}" for start in starts}
        missing = [start for start in starts if not (cache / kind / names[start]).exists()]
        if missing:
            left, folder = sum(min(per_shard, len(rows) - start) for start in missing), cache
            while not folder.exists():
                folder = folder.parent
            free, words = shutil.disk_usage(folder).free, f"{left * size / 1e9:.3g} GB"
            if left * size > free:
                raise UserError(
                    f"teacher.stored=true needs {words} in data.cache_dir={str(cache)!r}, which has {free / 1e9:.3g} "
                    f"GB left; lower teacher.top_k={top_k} or data.max_documents, or set teacher.stored=false"
                )
            amount = counted(left, "row") + (f" of {len(rows):,} (the others are there)" if left < len(rows) else "")
            say([f"teacher {teacher}: its {top_k} likeliest tokens of {amount} go into the cache, {words}"])

        def build(folder: Path, start: int) -> None:
            numbers = range(start, min(start + per_shard, len(rows)))
            with (folder / "ids.bin").open("wb") as ids, (folder / "log_probs.bin").open("wb") as log_probs:
                for some in in_batches(numbers, batch):
                    tokens, logs = answer(list(some))
                    ids.write(tokens.numpy().astype(dtype).data)
                    log_probs.write(logs.clamp_min(LEAST).numpy().astype(np.float16).data)
            meta = {"fingerprint": key, "name": rows.name, "dtype": dtype, "shape": [len(numbers), width, top_k]}
            (folder / META).write_text(json.dumps(meta))

        shown = watched(list(starts), "teacher, shard") if missing else starts
        folders = [cached_folder(cache, kind, names[s], lambda folder, s=s: build(folder, s)) for s in shown]
        return cls(rows, [TeacherShard(folder) for folder in folders], per_shard, key)

    def __getattr__(self, name: str) -> Any:
        """Other attributes of packed rows, such as `store` and `fill_rate`."""
        if name == "rows":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.rows, name)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index = self.inside(index)
        shard, place = self.shards[index // self.each], index % self.each
        ids = torch.from_numpy(shard.ids[place].astype(np.int64))
        log_probs = torch.from_numpy(shard.log_probs[place].astype(np.float32))
        return self.rows[index] | {TOP_IDS: ids, LOG_PROBS: log_probs}

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        return self.rows.documents(number, row)
