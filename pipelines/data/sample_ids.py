"""Sample ids: each row carries its number in the data set and its epoch, and random numbers are drawn from these.

An objective's randomness then depends on (seed, epoch, row id) alone: resuming, other workers or other processes change
nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from transformers import TrainingArguments

from .batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS, WORDS, row_generators, row_ids  # noqa: F401 (for plug-ins)
from .cursor import Cursor
from .rows import PlainRows, Rows, Streamed

NO_ROW = None  # index of a filler row, for a process that has no other
FILLED_UP = 64  # rows; an evaluation batch up to this size is filled up, and has the shape of the run's other batches


class NumberedRows(Dataset):
    """Rows as a loader reads them: each carries its number and the epoch, which is set by `set_epoch`.

    Rows that differ in each epoch are numbered on through all epochs (Rows.number_in). The index NO_ROW, and each
    beyond the last row, gives a copy of the first row without labels, with a number that no row has.

    rows: also a torch Subset, whose rows are numbered anew. split: the whole of which they are.
    The methods below `set_epoch` are called by a training; those of rows that are streamed do more (cursor.py).
    """

    def __init__(self, rows):
        self.rows: Rows = rows if isinstance(rows, Rows) else PlainRows(rows)
        is_part = isinstance(rows, Subset)
        self.split, self.chosen = (rows.dataset, rows.indices) if is_part else (self.rows, None)
        # Shared memory: workers that outlive an epoch (persistent_workers) have a copy of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        epoch = int(self._epoch)
        if index is NO_ROW or index >= len(self):
            number = self.rows.beyond if index is NO_ROW else index
            return without_labels(self.rows[0]) | {ROW_IDS: number, EPOCH: epoch}
        number = self.rows.number_in(epoch, int(index))
        return {EPOCH: epoch} | self.rows[number] | {ROW_IDS: number}  # rows may say their own epoch

    def number_in_split(self, number: int) -> int | None:
        """The number in the split of the row with a sample id; None: it is a filler's."""
        if number >= self.rows.beyond:
            return None
        return number if self.chosen is None else self.chosen[number]

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def enter(self, settings: dict) -> None:
        """Change what a trainer is made of (its keyword arguments) as far as the rows ask for it."""

    def begin(self, checkpoint: str | Path | None) -> None:
        """Called when the training begins, or goes on from a checkpoint."""

    def begin_loading(self, loader) -> None:
        """Called with the loader of the training."""

    def trained(self, batch: dict) -> None:
        """Called for each batch of the training; takes out of it what the model does not see."""

    def epoch(self, counted: float | None) -> float | None:
        """The epoch that is trained. counted: as Trainer counts it."""
        return counted

    def save(self, folder: Path, accelerator) -> None:
        """Write into a checkpoint's folder what resuming takes; all processes must call this."""


def training_rows(rows):
    """A split's rows as a training reads them."""
    return Cursor(rows) if isinstance(rows, Streamed) else NumberedRows(rows)


def without_labels(row: dict) -> dict:
    """The same row with all labels -100, and no token that stands for a word: it adds nothing to the loss."""
    words = {WORDS: torch.zeros_like(torch.as_tensor(row[WORDS]))} if WORDS in row else {}
    return row | words | {"labels": torch.full_like(torch.as_tensor(row["labels"]), IGNORE_INDEX)}


def evaluation_rows(rows, multiple: int) -> Subset:
    """Rows as an evaluation reads them: the longest first where they have `row_lengths`, so that batches hold little
    padding, then fillers up to a multiple of `multiple`.

    Every process then evaluates equally many rows, and none is counted twice.
    """
    numbered = NumberedRows(rows)
    lengths = numbered.rows.row_lengths
    order = range(len(numbered)) if lengths is None else np.argsort(-lengths, kind="stable").tolist()
    return Subset(numbered, [*order, *range(len(numbered), -(-len(numbered) // multiple) * multiple)])


@contextmanager
def evaluation_batches(arguments: TrainingArguments, rows) -> Iterator[Subset]:
    """Yields evaluation_rows for batches of the arguments, which in the block are no larger than needed."""
    asked = arguments.per_device_eval_batch_size
    needed = max(FILLED_UP, -(-len(rows) // arguments.world_size))
    arguments.per_device_eval_batch_size = min(asked, needed)
    try:
        yield evaluation_rows(rows, arguments.eval_batch_size * arguments.world_size)
    finally:
        arguments.per_device_eval_batch_size = asked
