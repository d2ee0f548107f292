"""Endless streams: pass after pass of a stream's rows, each with the position at which a resumed run goes on."""

import json
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..errors import UserError
from .batch_keys import POSITION
from .rows import Rows

WIDTH = 1024  # bytes; a position is padded to a multiple of it
BEGINNING = {"pass": 0}


class EndlessStream(IterableDataset):
    """The rows of a stream again and again, so that neither a batch nor an optimizer step ends where a pass does.

    rows: each iteration is a pass. If they have torchdata's `state_dict` and `load_state_dict`, a position within a
    pass is reached directly; otherwise the rows before it are made again and dropped.

    Each row carries its POSITION, where the next row begins: JSON in a tensor of bytes, because accelerate sends only
    tensors from the reading process to the others. So the position that is saved follows the last trained row, however
    far loaders and workers have read ahead.
    """

    def __init__(self, rows: Rows):
        self.rows, self._start = rows, BEGINNING

    def load_state_dict(self, position: dict) -> None:
        """Begin iterations at this position."""
        self._start = position

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        if worker is not None and worker.id > 0:  # one worker reads: the order must not depend on their number
            return
        width = None
        for row, position in self.placed(self._start):
            if width is None:  # room for longer numbers, and for positions in parts that were not read yet
                width = WIDTH * (1 + 2 * len(as_json(position)) // WIDTH) * getattr(self.rows, "sources", 1)
            yield row | {POSITION: encoded(position, width)}

    def placed(self, position: dict = BEGINNING) -> Iterator[tuple[dict, dict]]:
        """The rows from a position on, each with the position after it."""
        while True:
            start = position
            for row, position in self._one_pass(start):
                yield row, position
            if position is start and "rows" not in start:
                raise UserError(f"data: {self.rows.name} gives no row to train on.")
            position = {"pass": start["pass"] + 1}

    def _one_pass(self, start: dict) -> Iterator[tuple[dict, dict]]:
        """The rows from a position to the end of its pass, each with the position after it."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(start["pass"])
        done = first = start.get("rows", 0)
        if "state" in start:
            self.rows.load_state_dict(start["state"])
        else:
            first = 0
        has_state = hasattr(self.rows, "state_dict")
        for number, row in enumerate(self.rows, start=first + 1):
            if number > done:
                state = {"state": self.rows.state_dict()} if has_state else {}
                yield row, {"pass": start["pass"], "rows": number} | state


class PositionCollator:
    """A collator whose batches also have the positions of their rows, (B, bytes), where rows have them."""

    def __init__(self, collator: Callable[[list[dict]], dict]):
        self.collator = collator

    def __call__(self, rows: list[dict]) -> dict:
        if POSITION not in rows[0]:
            return self.collator(rows)
        bare = [{name: value for name, value in row.items() if name != POSITION} for row in rows]
        return {**self.collator(bare), POSITION: torch.stack([row[POSITION] for row in rows])}


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
