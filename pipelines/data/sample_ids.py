"""Sample ids: each row carries its number in the data set and its epoch, and random numbers are drawn from these.

An objective's randomness then depends on (seed, epoch, row id) alone: resuming, other workers or other processes change
nothing.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info
from transformers import TrainingArguments

from ..storage.atomic import write_atomically
from .batch_keys import EPOCH, IGNORE_INDEX, POSITION, ROW_IDS, WORDS
from .rows import BEGINNING, PlainRows, Rows, Streamed, passes_from

FILE = "stream.json"
WIDTH = 1024  # bytes; a position is padded to a multiple of it
NO_ROW = None  # index of a filler row, for a process that has no other


class NumberedRows(Dataset):
    """Rows as a loader reads them: each carries its number and the epoch, which is set by `set_epoch`.

    Rows that differ in each epoch are numbered on through all epochs (Rows.number_in). The index NO_ROW, and each
    beyond the last row, gives a copy of the first row without labels, with a number that no row has.

    rows: also a torch Subset, whose rows are numbered anew. split: the whole of which they are.
    The methods below `set_epoch` are called by a training; those of Cursor do more.
    """

    def __init__(self, rows):
        self.rows: Rows = rows if isinstance(rows, Rows) else PlainRows(rows)
        # A number that no row of any epoch has; rows with this number only fill up a batch.
        self._beyond = 2**62 if self.rows.number_in(1, 0) else len(self.rows)
        is_part = isinstance(rows, Subset)
        self.split, self.chosen = (rows.dataset, rows.indices) if is_part else (self.rows, None)
        # Shared memory: workers that outlive an epoch (persistent_workers) have a copy of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        epoch = int(self._epoch)
        if index is NO_ROW or index >= len(self):
            number = self._beyond if index is NO_ROW else index
            return without_labels(self.rows[0]) | {ROW_IDS: number, EPOCH: epoch}
        number = self.rows.number_in(epoch, int(index))
        return {EPOCH: epoch} | self.rows[number] | {ROW_IDS: number}  # rows may say their own epoch

    def number_in_split(self, number: int) -> int | None:
        """The number in the split of the row with a sample id; None: it is a filler's."""
        if number >= self._beyond:
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


class Cursor(IterableDataset):
    """A stream's rows as a training reads them: without an end, so that no batch and no step ends where a pass does.

    Each row carries its POSITION, where the next row begins: JSON in a tensor of bytes, because accelerate sends only
    tensors from the reading process to the others. So the position that is saved follows the last trained row, however
    far loaders and workers have read ahead. The methods are those of NumberedRows.

    position: where iterations begin.
    """

    def __init__(self, rows: Streamed):
        self.rows = self.split = rows
        self.position = BEGINNING
        self._latest: torch.Tensor | None = None  # the encoded position of the last row that this process has trained

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        if worker is not None and worker.id > 0:  # one worker reads: the order must not depend on their number
            return
        width = None
        for row, position in passes_from(self.rows, self.position):
            if width is None:  # room for longer numbers, and for positions in parts that were not read yet
                width = WIDTH * (1 + 2 * len(as_json(position)) // WIDTH) * self.rows.num_places
            yield row | {POSITION: encoded(position, width)}

    def number_in_split(self, number: int) -> int:
        return number

    def enter(self, settings: dict) -> None:
        settings["data_collator"] = partial(with_positions, settings["data_collator"])
        settings["args"].ignore_data_skip = True  # a resumed run goes to its position itself

    def begin(self, checkpoint: str | Path | None) -> None:
        self.position, self._latest = BEGINNING, None
        if checkpoint is not None:
            self.position = json.loads((Path(checkpoint) / FILE).read_text(encoding="utf-8"))

    def begin_loading(self, loader) -> None:
        # A DataLoader draws a random number whenever iteration begins, and a resumed run begins once more. With a
        # generator of its own it does not change the state of the global one.
        loader.base_dataloader.generator = torch.Generator()

    def trained(self, batch: dict) -> None:
        if POSITION in batch:
            self._latest = batch.pop(POSITION)[-1]

    def epoch(self, counted: float | None) -> float:
        """The number of complete passes, as Trainer counts all steps of a stream as one epoch; waits for the device."""
        return float((self.position if self._latest is None else decoded(self._latest))["pass"])

    def save(self, folder: Path, accelerator) -> None:
        if self._latest is None:
            return
        latest = accelerator.gather(self._latest[None])[-1]  # the last process has the last rows of a batch
        if accelerator.is_main_process:
            write_atomically(folder / FILE, json.dumps(decoded(latest)))


def with_positions(collator: Callable[[list[dict]], dict], rows: list[dict]) -> dict[str, Any]:
    """A batch with the positions of its rows, (B, bytes), where rows have them."""
    if POSITION not in rows[0]:
        return collator(rows)
    bare = [{name: value for name, value in row.items() if name != POSITION} for row in rows]
    return {**collator(bare), POSITION: torch.stack([row[POSITION] for row in rows])}


def as_json(position: dict) -> bytes:
    return json.dumps(position, separators=(",", ":")).encode()


def encoded(position: dict, width: int) -> torch.Tensor:
    """A position as `width` bytes; a longer one is reduced to its pass and row number."""
    text = as_json(position)
    if len(text) > width:
        text = as_json({name: position[name] for name in ("pass", "rows")})
    return torch.frombuffer(bytearray(text.ljust(width)), dtype=torch.uint8)


def decoded(position: torch.Tensor) -> dict:
    return json.loads(bytes(position.tolist()))


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
    """Yields evaluation_rows for batches of the arguments, which in the block are as small as their number allows."""
    asked = arguments.per_device_eval_batch_size
    of_process = max(1, -(-len(rows) // arguments.world_size))
    arguments.per_device_eval_batch_size = -(-of_process // -(-of_process // asked))
    try:
        yield evaluation_rows(rows, arguments.eval_batch_size * arguments.world_size)
    finally:
        arguments.per_device_eval_batch_size = asked
