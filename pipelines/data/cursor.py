"""The cursor of a training in a stream: pass after pass of its rows, and the place where a resumed run goes on."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..storage.atomic import write_atomically
from .batch_keys import POSITION
from .rows import BEGINNING, Streamed, passes_from

FILE = "stream.json"
WIDTH = 1024  # bytes; a position is padded to a multiple of it


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
