"""Rows that know which they are, in training and in evaluation."""

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import TrainerCallback

from ..training.cross_entropy import IGNORED

# Which rows of the data set a batch holds, for error messages, and in which pass; neither is for the model.
ROWS_KEY, EPOCH_KEY = "row_ids", "epoch"


class NumberedRows(Dataset):
    """A map-style data set whose rows carry their own index and the number of the pass, told by set_epoch."""

    def __init__(self, rows: Dataset):
        self.rows = rows
        # Shared memory: workers that outlive a pass (persistent_workers) hold a copy of this object, and must be told.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] | {ROWS_KEY: int(index), EPOCH_KEY: int(self._epoch)}

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)


class RowsWithFiller(Dataset):
    """Numbered rows, then copies of the first one without labels, up to a multiple of `multiple`.

    Every process then evaluates equally many rows, and none is counted twice. Rows that know their `row_lengths` come
    longest first, so that little is padded.
    """

    def __init__(self, rows: Dataset, multiple: int):
        self.rows, self.length = rows, -(-len(rows) // multiple) * multiple
        lengths = getattr(rows, "row_lengths", None)
        self.order = range(len(rows)) if lengths is None else np.argsort(-lengths, kind="stable").tolist()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        number = self.order[index] if index < len(self.rows) else index
        row = self.rows[number if index < len(self.rows) else 0] | {ROWS_KEY: number, EPOCH_KEY: 0}
        if index >= len(self.rows):
            row["labels"] = torch.full_like(torch.as_tensor(row["labels"]), IGNORED)
        return row


class EpochNumbers(TrainerCallback):
    """Tells data set and sampler which pass begins: accelerate does not reach them in every arrangement of loaders."""

    def __init__(self):
        self.listeners = []

    def on_epoch_begin(self, args, state, control, **kwargs):
        for listener in self.listeners:
            listener.set_epoch(int(state.epoch or 0))
