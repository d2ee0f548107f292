"""Packing of whole examples: several per row, none of them cut, and none sees another (position_ids restart)."""

from bisect import bisect_left, insort
from collections import defaultdict

import numpy as np
import torch
from torch.utils.data import Dataset

from ..storage.cache import sha
from .batch_keys import IGNORE_INDEX
from .example_store import EncodedExamples
from .packing import row
from .rows import Rows


def best_fit(lengths: np.ndarray, room: int) -> list[list[int]]:
    """Which examples share a row of `room` tokens: best fit decreasing, as in TRL (Ding et al. 2024, section 3.1).

    The longest example comes first, each into the fullest row that it fits into. Rows are ordered by their first
    example, and the examples of a row by their number. No length may be above `room`.
    """
    rows: list[list[int]] = []
    free: list[int] = []  # the distinct numbers of free tokens in rows, ascending
    with_free: dict[int, list[int]] = defaultdict(list)  # number of free tokens -> rows
    for example in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[example])
        place = bisect_left(free, length)
        if place == len(free):
            number, left = len(rows), room
            rows.append([])
        else:
            left = free[place]
            number = with_free[left].pop()
            if not with_free[left]:
                free.pop(place)
        rows[number].append(example)
        left -= length
        if not with_free[left]:
            insort(free, left)
        with_free[left].append(number)
    return sorted(sorted(examples) for examples in rows)


class PackedExamples(Rows, Dataset):
    """Rows of `length` tokens (T): input_ids, labels, position_ids of shape (T,), padded at the end.

    examples: their input_ids and labels are of equal length, at most T; the first label of an example is ignored,
    because no token stands before it.
    """

    def __init__(self, examples: EncodedExamples, length: int, pad_token_id: int):
        self.examples, self.length, self.pad_token_id = examples, length, pad_token_id
        self._lengths = examples.row_lengths // 2  # of input_ids and labels together
        self._rows = best_fit(self._lengths, length)
        self.fingerprint = sha([examples.fingerprint, length, "whole examples"])
        self.name, self.account = examples.name, examples.account
        self.is_packed = any(len(members) > 1 for members in self._rows)
        filled = int(self._lengths.sum()) / (len(self._rows) * length)
        self.facts = examples.facts | {"rows": len(self._rows), "fill_rate": round(filled, 6)}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        members = [self.examples[number] for number in self._rows[index]]
        tokens, labels = (torch.cat([example[name] for example in members]) for name in ("input_ids", "labels"))
        borders = np.cumsum([len(example["input_ids"]) for example in members])[:-1]
        packed = row(tokens.numpy(), borders, self.length, self.pad_token_id)
        packed["labels"][: len(labels)][labels == IGNORE_INDEX] = IGNORE_INDEX
        return packed

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        return [(example, 0, int(self._lengths[example])) for example in self._rows[number]]

    def texts(self, column: str) -> list[str]:
        """A column of raw texts, in the order of the examples."""
        return self.examples.texts(column)
