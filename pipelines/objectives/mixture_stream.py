"""The rows of a mixture with a part that is streamed, and so cannot be counted: one stream without an end.

The next row comes from the part with the fewest rows so far for its weight, so that the order is reproducible and no
part is ever more than one row ahead of its share. Each part is repeated, in a new order if it is no stream.
"""

import copy
from collections.abc import Iterator
from typing import NamedTuple

from ..data.account import Account
from ..data.batch_keys import EPOCH, ROW_IDS
from ..data.mixed_rows import MixedRows
from ..data.rows import Rows
from ..lazy import np, torch

PLACE = "place"  # key of a row: its Place


class Place(NamedTuple):
    """A row's part, its number there, how often it came before in the epoch (turn) and can come at most (turns).

    turns is 0 where `turn` counts through all epochs. inner: the row's place in the part, if that has parts, too.
    """

    part: str
    number: int
    turn: int
    turns: int
    inner: "Place | None" = None


class PlacedStream(Rows):
    """Rows of several parts, some of them streams, by weight; each says of which part it is, for the collator.

    There is one pass, which never ends. A row's sample id also says which part it is of (`place`). The row is what the
    part alone would give in the epoch `turn` of its Place, which counts the part's own passes. state_dict and
    load_state_dict are torchdata's: iteration goes on after the latest row without making the rows before it.

    Args:
        parts: label -> rows. weights: label -> share of the rows. seed: of the order of parts that are no streams.
    """

    is_stream = True

    @property
    def sources(self) -> int:
        """The number of positions that the stream's position consists of."""
        return sum(getattr(rows, "sources", 1) for rows in self.parts.values())

    def __init__(self, parts: dict[str, Rows], weights: dict[str, float], seed: int):
        self.parts, self.weights, self.seed = parts, weights, seed
        self.labels = list(parts)
        self.name = " + ".join(dict.fromkeys(rows.name for rows in parts.values()))
        identity = [[label, rows.identity] for label, rows in parts.items()]
        self.fingerprint = MixedRows.identity_of(identity)
        self.is_packed = any(rows.is_packed for rows in parts.values())
        self.account = sum((rows.account for rows in parts.values()), Account())
        self.notes = [f"{label}: {note}" for label, rows in parts.items() for note in rows.notes]
        self._start: dict = {}
        self._state: dict = {}

    def report(self) -> dict:
        parts = {label: rows.report() for label, rows in self.parts.items()}
        return {"stream": self.identity, "parts": parts} | ({"notes": self.notes} if self.notes else {})

    def shares(self) -> dict[str, float]:
        """{part: its share of the rows}."""
        return {label: self.weights[label] / sum(self.weights.values()) for label in self.labels}

    def place(self, number: int) -> tuple[str, int]:
        """(part, number of its rows before) of the row with this sample id."""
        return self.labels[number % len(self.labels)], number // len(self.labels)

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        place = row[PLACE]
        return self.parts[place.part].documents(place.number, row and row | {PLACE: place.inner})

    def state_dict(self) -> dict:
        """{"given": rows of each part so far, "places": the position in each}, JSON; {} before the first row."""
        return self._state

    def load_state_dict(self, state: dict) -> None:
        self._start = self._state = state

    def __iter__(self) -> Iterator[dict]:
        start, self._start = self._start, {}
        counts = {label: 0 for label in self.labels} | start.get("given", {})
        places = dict(start.get("places", {}))
        rows = {label: self._endless(label).placed(*filter(None, [places.get(label)])) for label in self.labels}
        shares = self.shares()
        while True:
            total = sum(counts.values()) + 1
            label = max(self.labels, key=lambda label: total * shares[label] - counts[label])
            row, places[label] = next(rows[label])
            number = counts[label] * len(self.labels) + self.labels.index(label)
            counts[label] += 1
            self._state = {"given": dict(counts), "places": dict(places)}
            place = Place(label, int(row[ROW_IDS]), int(row[EPOCH]), 1, row.get(PLACE))
            yield row | {PLACE: place, ROW_IDS: torch.tensor(number), EPOCH: torch.tensor(0)}

    def __deepcopy__(self, memo) -> "PlacedStream":
        """Parts that are no streams are shared: they have no position, and their tokens lie in a mapped file."""
        parts = {label: copy.deepcopy(rows, memo) if rows.is_stream else rows for label, rows in self.parts.items()}
        return PlacedStream(parts, self.weights, self.seed)

    def _endless(self, label: str):
        from ..data.endless import EndlessStream

        rows = self.parts[label]
        return EndlessStream(rows if rows.is_stream else Shuffled(rows, self.seed))


class Shuffled:
    """Rows that are no stream as one pass of a stream, in an order that depends on the seed and the pass alone."""

    def __init__(self, rows: Rows, seed: int):
        self.rows, self.seed, self.name = rows, seed, rows.name
        self._epoch = self._start = self._done = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def state_dict(self) -> dict:
        """{"rows": how many rows of the pass came so far}."""
        return {"rows": self._done}

    def load_state_dict(self, state: dict) -> None:
        self._start = state["rows"]

    def __iter__(self) -> Iterator[dict]:
        start, self._start = self._start, 0
        epoch = self._epoch
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows))
        order += epoch * len(self.rows) * self.rows.is_endless
        for self._done, number in enumerate(order[start:].tolist(), start=start + 1):
            yield self.rows[number] | {ROW_IDS: torch.tensor(number), EPOCH: torch.tensor(epoch)}
