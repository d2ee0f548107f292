"""How the rows of one source are split into parts: by a hash of their numbers or names, or as planned in one pass."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..errors import UserError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION, "test")
# A stream may have no end: only its first documents are candidates, or validation would read all of it.
STREAM_WINDOW = 20_000


@dataclass(frozen=True)
class Split:
    """The rule that says of which part a row is. All fields but `planned` are part of data sets' fingerprints.

    shares: part -> its share of the rows; the rest is for training. A row's number, or name (by_name), is hashed with
    the seed, so that added rows move none. window: only the first so many rows are candidates. moved: number of the one
    row that changes sides because the hash alone would leave one side empty. cut: there is one document only, and the
    end of its text is validation.

    planned: the part of each row, where parts are stratified by the column `classes`, keep equal values of the column
    `groups` together, or are more than two.
    """

    shares: dict[str, float]
    seed: int = 0
    by_name: bool = False
    window: int | None = None
    moved: int | None = None
    cut: bool = False
    classes: str | None = None
    groups: str | None = None
    planned: Sequence[str] | None = field(default=None, compare=False, repr=False)

    @property
    def fraction(self) -> float:
        return self.shares[VALIDATION]

    def part(self, index: int, name: str = "") -> str:
        """The part of the row with this number and name."""
        if self.planned is not None:
            return self.planned[index]
        if self.cut:
            return TRAIN  # what is left out; the document itself is of both
        if self.window is not None and index >= self.window:
            return TRAIN
        is_held = (rank(self.seed, name if self.by_name else index) < self.fraction) != (index == self.moved)
        return VALIDATION if is_held else TRAIN

    def identity(self, part: str) -> dict[str, Any]:
        """Part of the fingerprint of the rows of one part."""
        if self.planned is not None:
            return {"fractions": self.shares, "classes": self.classes, "groups": self.groups, "part": part}
        return {name: getattr(self, name) for name in ("fraction", "seed", "by_name", "window", "moved", "cut")}

    def holding_at_least(self, number: int, there: int) -> "Split":
        """This rule, its share raised if need be to hold back `number` of the first `there` rows, by number."""
        if number >= there:
            return self
        ranks = sorted(rank(self.seed, index) for index in range(there))
        return replace(self, shares=self.shares | {VALIDATION: max(self.fraction, ranks[number])})

    def with_both_parts(self, names: Iterable[tuple[int, str]]) -> "Split":
        """This rule, completed so that both parts have a row. names: (number, name) of the rows, of which it reads
        until each part has one: seldom many."""
        both, lowest, highest = set(), (1.0, -1), (-1.0, -1)
        for index, name in names:
            both.add(self.part(index, name))
            if len(both) == 2:
                return self
            row = rank(self.seed, name if self.by_name else index), index
            lowest, highest = min(lowest, row), max(highest, row)
            if self.window is not None and index + 1 >= self.window:
                break
        if lowest == highest:
            return replace(self, cut=True)
        return replace(self, moved=(highest if VALIDATION in both else lowest)[1])


def rank(seed: int, key: int | str) -> float:
    """A number in [0, 1) from a row's number or name; below a share it is of that part."""
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def planned_parts(split: Split, reads: Iterator, most: int | None) -> list[str]:
    """The part of each of a source's first `most` rows. reads: the source's items().

    From each class (or from all rows) whole groups are taken, in the order of their names' hashes, until a part has its
    share. Where groups are single rows, each part has its share of every class to within one row, and at least one row
    of a class with as many rows as there are parts.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    classes = []
    for index, (_, row) in enumerate(islice(reads, most)):
        is_read = not isinstance(row, UserError)
        group = repr(row[split.groups]) if split.groups and is_read else index
        groups[group].append(index)
        name = row[split.classes] if split.classes and is_read else ""
        classes.append(repr(getattr(name, "class_name", name)))  # files may number the same classes otherwise
    strata: dict[str, list[tuple[float, list[int]]]] = defaultdict(list)
    for group, rows in groups.items():
        most_frequent = Counter(classes[index] for index in rows).most_common(1)[0][0]
        strata[most_frequent].append((rank(0, group), rows))
    parts = [TRAIN] * len(classes)
    for members in strata.values():
        members.sort()
        for part, rows in _taken(split.shares, [rows for _, rows in members]):
            for index in rows:
                parts[index] = part
    return parts


def _taken(shares: dict[str, float], members: Sequence[list[int]]) -> Iterator[tuple[str, list[int]]]:
    """(part, rows) of the groups of one class that are not for training."""
    total, at, has_all = sum(map(len, members)), 0, len(members) > len(shares)
    for left, (part, share) in zip(range(len(shares), 0, -1), shares.items()):
        target, taken = max(round(total * share), int(has_all)), 0
        while taken < target and at < len(members) - (left if has_all else 1):
            yield part, members[at]
            taken, at = taken + len(members[at]), at + 1
