"""The parts of labelled examples where they are stratified, or three: planned in one pass."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..errors import UserError
from .validation_split import ValidationSplit

TRAIN = "train"


@dataclass(frozen=True)
class PartOfPlan:
    """One part, as Examples takes it in place of a ValidationSplit.

    fractions: part -> its share of the rows; the rest is for training. classes: column of the class of which each part
    gets its share; None: any rows. parts: the part of each row of the source.
    """

    fractions: dict[str, float]
    classes: str | None
    part: str
    parts: list[str]

    def is_validation(self, index: int, name: str) -> bool:
        return self.parts[index] == self.part

    def identity(self) -> dict[str, Any]:
        # groups: of former versions, whose runs go on.
        return {"fractions": self.fractions, "classes": self.classes, "groups": None, "part": self.part}


def planned_parts(fractions: dict[str, float], classes: str | None, reads: Iterator, most: int | None) -> list[str]:
    """The part of each of a source's first `most` rows; fractions and classes as PartOfPlan's. reads: what it reads.

    Of one class (or of all rows) rows are taken in an order that the hashes of their numbers give, until a part has its
    share. Each part has its share of every class to within one row, and one at least of a class with as many rows as
    there are parts.
    """
    strata: dict[str, list[tuple[float, int]]] = defaultdict(list)
    order, parts = ValidationSplit(0.0), []
    for index, (_, row) in enumerate(islice(reads, most)):
        name = repr(row[classes]) if classes and not isinstance(row, UserError) else ""
        strata[name].append((order.rank(index, ""), index))
        parts.append(TRAIN)
    for members in strata.values():
        members.sort()
        at, has_all = 0, len(members) > len(fractions)
        for left, (part, fraction) in zip(range(len(fractions), 0, -1), fractions.items()):
            wanted = max(round(len(members) * fraction), int(has_all))
            end = min(at + wanted, len(members) - (left if has_all else 1))
            for _, index in members[at:end]:
                parts[index] = part
            at = max(at, end)
    return parts
