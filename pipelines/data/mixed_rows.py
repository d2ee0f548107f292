"""The rows of several parts as one split: of objectives or tasks that are learned together, or of sources."""

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property

from ..lazy import np
from .account import Account
from .mixture_order import MixtureOrder
from .rows import Rows

SIZES = ("documents", "tokens", "bytes")  # facts that are added up


class MixedRows(Rows):
    """Rows of several parts, one part after the other; the training shuffles them.

    weights: part -> share of the rows; a part's rows are repeated in their order until it has its share, and each comes
    at least once. None: each row once. counts: part -> number of its rows, repetitions included. A part that is endless
    is never repeated: in each epoch it goes on where the one before ended.
    """

    def __init__(self, parts: Mapping[str, Rows], weights: Mapping[str, float] | None):
        self.parts = parts
        self.counts = {name: len(rows) for name, rows in parts.items()}
        if weights is not None:
            longest = max(len(rows) / weights[name] for name, rows in parts.items())
            # 1e-6: rounding must not make one of several equal parts a row longer.
            self.counts = {name: math.ceil(weights[name] * longest - 1e-6) for name in parts}
        self.name = " + ".join(dict.fromkeys(rows.name for rows in parts.values()))
        self.fingerprint = self.identity_of(
            [[name, rows.fingerprint, self.counts[name]] for name, rows in parts.items()]
        )
        self.facts = {"examples": len(self), "tokens": self.total("tokens"), "parts": dict(self.counts)} | self.words()
        self.is_packed = any(rows.is_packed for rows in parts.values())
        self.is_endless = any(rows.is_endless for rows in parts.values())
        self.account = sum((rows.account for rows in parts.values()), Account())
        self.notes = [f"{name}: {note}" for name, rows in parts.items() for note in rows.notes]

    @staticmethod
    def identity_of(content: list) -> str:
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def total(self, size: str) -> int:
        """The sum of a size (a name in the facts) over the rows, repetitions included."""
        return sum(rows.facts[size] * self.counts[name] // len(rows) for name, rows in self.parts.items())

    def words(self) -> dict[str, int]:
        """{"words": number of words, repetitions included}; {} where a part does not count them."""
        return {"words": self.total("words")} if all("words" in rows.facts for rows in self.parts.values()) else {}

    def __len__(self) -> int:
        return sum(self.counts.values())

    def shares(self) -> dict[str, float]:
        """Each part's share of the rows."""
        return {name: count / len(self) for name, count in self.counts.items()}

    @cached_property
    def row_lengths(self):
        lengths = {name: rows.row_lengths for name, rows in self.parts.items()}
        if any(part is None for part in lengths.values()):
            return None
        return np.concatenate([np.resize(np.asarray(part), self.counts[name]) for name, part in lengths.items()])

    def place(self, number: int) -> tuple[str, int]:
        """(part, number in it) of a row."""
        name, inside, _ = self.turn(number)
        return name, inside

    def turn(self, number: int) -> tuple[str, int, int]:
        """(part, number in it, how often that row came before in the epoch) of a row; of an endless part in the run."""
        epoch, number = divmod(number, len(self)) if self.is_endless and number >= 0 else (0, self.inside(number))
        for name, count in self.counts.items():
            if number < count and self.parts[name].is_endless:
                number += epoch * count
                return name, number, number // len(self.parts[name])
            if number < count:
                return name, number % len(self.parts[name]), number // len(self.parts[name])
            number -= count
        raise AssertionError("unreachable: the number is below the sum of the counts")

    def __getitem__(self, number: int) -> dict:
        name, inside = self.place(number)
        return self.parts[name][inside]

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        name, inside = self.place(number)
        return self.parts[name].documents(inside, row)

    @property
    def stores(self) -> list:
        return [store for rows in self.parts.values() for store in rows.stores]


class SourceRows(MixedRows):
    """Rows of the sources of `data.mixture`, each of which has its own tokens in the cache.

    order: the order of training rows; an epoch ends before a row would come twice in it, and the next epoch goes on in
    each source where this one ended. None: each row once, one source after the other.
    """

    def __init__(self, parts: Mapping[str, Rows], order: MixtureOrder | None = None):
        super().__init__(parts, None)
        self.order, self.is_ordered, self.is_endless = order, order is not None, order is not None
        first = next(iter(parts.values()))
        self.sequence_length = getattr(first, "sequence_length", None)
        if order is not None:
            before = order.drawn_before(order.first_repeated())
            self.counts = {name: before[name] - order.begun[name] for name in parts}
            self.row_lengths = None
            self.fingerprint = self.identity_of([self.fingerprint, order.identity()])
        noun = "rows" if "rows" in first.facts else "examples"
        self.facts = {size: self.total(size) for size in SIZES} | self.words() | {noun: len(self)}
        self.facts["sources"] = {
            name: {noun: self.counts[name], "share": round(share, 6)}
            | {size: parts[name].facts[size] for size in SIZES}
            for name, share in self.shares().items()
        }

    def of(self, parts: Mapping[str, Rows]) -> "SourceRows":
        """The same mixture with these parts, whose rows are as many, in the same order, and may have more in them."""
        return SourceRows(parts, self.order)

    def tokens_before(self, number: int) -> dict[str, int]:
        """The tokens of each source in the training rows before a number."""
        drawn = self.order.drawn_before(number)
        return {name: drawn[name] * rows.facts["tokens"] // len(rows) for name, rows in self.parts.items()}

    def turn(self, number: int) -> tuple[str, int, int]:
        """(source, number in it, how often the source was read before) of a row; of training rows in any epoch."""
        if self.order is None:
            return super().turn(number)
        return self.order.draw(number if number >= 0 else self.inside(number))
