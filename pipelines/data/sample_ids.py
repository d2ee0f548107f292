"""Sample ids: each row carries its number in the data set and its epoch, and random numbers are drawn from these.

An objective's randomness then depends on (seed, epoch, row id) alone: resuming, other workers or other processes change
nothing.
"""

from collections.abc import Iterator, Sized
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import TrainingArguments

from .batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS, WORDS, row_generators, row_ids  # noqa: F401 (for plug-ins)
from .endless import EndlessStream

NO_ROW = None  # index of a filler row, for a process that has no other
FILLED_UP = 64  # rows; an evaluation batch up to this size is filled up, and has the shape of the run's other batches


class DatasetWithSampleIds(Dataset):
    """A map-style data set whose rows carry their own index and the epoch, which is set by `set_epoch`.

    Rows that differ in each epoch (Rows.is_endless) are numbered on through all epochs. The index NO_ROW gives a copy
    of the first row without labels, with a number that no row has.
    """

    def __init__(self, rows: Dataset):
        self.rows = rows
        # Shared memory: workers that outlive an epoch (persistent_workers) have a copy of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        epoch = int(self._epoch)
        if index is NO_ROW:
            return without_labels(self.rows[0]) | {ROW_IDS: getattr(self.rows, "beyond", len(self)), EPOCH: epoch}
        number = int(index) + epoch * len(self) * getattr(self.rows, "is_endless", False)
        return {EPOCH: epoch} | self.rows[number] | {ROW_IDS: number}  # rows may say their own epoch

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)


def with_sample_ids(rows):
    """The rows for training: with sample ids; streams (Rows.is_stream), which number their rows themselves, endless."""
    if getattr(rows, "is_stream", False):
        return EndlessStream(rows)
    return DatasetWithSampleIds(rows) if isinstance(rows, Sized) else rows


def without_labels(row: dict) -> dict:
    """The same row with all labels -100, and no token that stands for a word: it adds nothing to the loss."""
    words = {WORDS: torch.zeros_like(torch.as_tensor(row[WORDS]))} if WORDS in row else {}
    return row | words | {"labels": torch.full_like(torch.as_tensor(row["labels"]), IGNORE_INDEX)}


def evaluation_order(rows: Dataset) -> list[int]:
    """The order in which an evaluation takes some rows: the longest first where they have `row_lengths`."""
    lengths = getattr(rows, "row_lengths", None)
    return list(range(len(rows))) if lengths is None else np.argsort(-lengths, kind="stable").tolist()


class PaddedEvalDataset(Dataset):
    """Rows with sample ids, then copies of the first one without labels, up to a multiple of `multiple`.

    Every process then evaluates equally many rows, and none is counted twice. They come in evaluation_order, so that
    batches hold little padding.
    """

    def __init__(self, rows: Dataset, multiple: int):
        self.rows, self.length = rows, -(-len(rows) // multiple) * multiple
        self.order = evaluation_order(rows)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        number = self.order[index] if index < len(self.rows) else index
        row = self.rows[number] if index < len(self.rows) else without_labels(self.rows[0])
        return row | {ROW_IDS: number, EPOCH: 0}


@contextmanager
def evaluation_batches(arguments: TrainingArguments, rows: Dataset) -> Iterator[PaddedEvalDataset]:
    """Yields the rows, padded for evaluation batches of the arguments, which in the block are no larger than needed."""
    asked = arguments.per_device_eval_batch_size
    needed = max(FILLED_UP, -(-len(rows) // arguments.world_size))
    arguments.per_device_eval_batch_size = min(asked, needed)
    try:
        yield PaddedEvalDataset(rows, arguments.eval_batch_size * arguments.world_size)
    finally:
        arguments.per_device_eval_batch_size = asked
