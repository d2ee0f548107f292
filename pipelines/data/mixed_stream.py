"""The rows of a mixture with a part that is streamed, and so cannot be counted: one stream without an end.

The next row comes from the part with the fewest rows so far for its weight, so that the order is reproducible and no
part is ever more than one row ahead of its share. Each part is repeated, in a new order if it is no stream.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..lazy import torch
from .account import Account
from .batch_keys import EPOCH, PLACE, ROW_IDS
from .order import Place
from .rows import BEGINNING, Rows, Streamed, passes_from


class MixedStream(Streamed):
    """Rows of several parts, some of them streams, by weight; each says of which part it is, for the collator.

    There is one pass, which never ends. A row's sample id also says which part it is of (`place`). The row is what the
    part alone would give in the epoch `turn` of its Place, which counts the part's own passes.

    Args:
        parts: label -> rows. weights: label -> share of the rows. seed: of the order of parts that are no streams.
    """

    def __init__(self, parts: Mapping[str, Rows], weights: Mapping[str, float], seed: int):
        self.parts, self.weights, self.seed = parts, weights, seed
        self.labels = list(parts)
        self.name = " + ".join(dict.fromkeys(rows.name for rows in parts.values()))
        identity = [[label, rows.identity] for label, rows in parts.items()]
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self.is_packed = any(rows.is_packed for rows in parts.values())
        self.account = sum((rows.account for rows in parts.values()), Account())
        self.num_places = sum(rows.num_places for rows in parts.values())

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
        if row is None:
            return []
        place = row[PLACE]
        return self.parts[place.part].documents(place.number, row | {PLACE: place.inner})

    def pass_from(self, number: int, place: Any = None, seed: int = 0) -> Iterator[tuple[dict, dict]]:
        """place: {"given": rows of each part so far, "places": the position in each, as passes_from takes it}."""
        place = place or {"given": {}, "places": {}}
        counts, positions = dict.fromkeys(self.labels, 0) | place["given"], dict(place["places"])
        rows = {
            label: passes_from(part, positions.get(label, BEGINNING), self.seed) for label, part in self.parts.items()
        }
        shares = self.shares()
        while True:
            total = sum(counts.values()) + 1
            label = max(self.labels, key=lambda label: total * shares[label] - counts[label])
            row, positions[label] = next(rows[label])
            number = counts[label] * len(self.labels) + self.labels.index(label)
            counts[label] += 1
            own = Place(label, int(row[ROW_IDS]), int(row[EPOCH]), 1, row.get(PLACE))
            ids = {PLACE: own, ROW_IDS: torch.tensor(number), EPOCH: torch.tensor(0)}
            yield row | ids, {"given": dict(counts), "places": dict(positions)}
