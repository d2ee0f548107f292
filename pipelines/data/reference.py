"""Rows with another model's answers to them, which are computed once and kept in the cache."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from ..storage.cache import cached_folder, sha
from ..words import counted, watched
from .documents import in_batches
from .rows import Rows

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
    if missing and os.environ.get("RANK", "0") == "0":
        print(f"teacher {teacher}: its answers to {counted(missing, 'example')} go into the cache", flush=True)

    def stored(number: int) -> np.ndarray:
        def build(work: Path) -> None:
            np.save(work / FILE, answer(chunks[number]))

        return np.load(cached_folder(cache, ANSWERS, keys[number], build) / FILE)

    return np.concatenate([stored(number) for number in watched(range(len(chunks)), f"teacher, {TEXTS_AT_ONCE} texts")])
