"""The split of labelled examples that is stratified or grouped, or has a test part: planned in one pass."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from ..errors import UserError
from .validation_split import ValidationSplit

TRAIN = "train"


@dataclass(frozen=True)
class SplitPlan:
    """How a source is divided into parts. The fields are part of data sets' fingerprints.

    fractions: part -> its share of the rows; the rest is for training. classes: column of the classes by which parts
    are stratified, or None. groups: column whose equal values stay in one part; None: each row is a group.
    """

    fractions: dict[str, float]
    classes: str | None = None
    groups: str | None = None


class PartOfPlan:
    """One part, as Examples takes it in place of a ValidationSplit. parts: the part of each row of the source."""

    def __init__(self, plan: SplitPlan, part: str, parts: list[str]):
        self.plan, self.part, self.parts = plan, part, parts

    def is_validation(self, index: int, name: str) -> bool:
        return self.parts[index] == self.part

    def identity(self) -> dict[str, Any]:
        return asdict(self.plan) | {"part": self.part}


def planned_parts(plan: SplitPlan, reads: Iterator, most: int | None) -> list[str]:
    """The part of each of a source's first `most` rows. reads: the source's items().

    From each class (or from all rows) whole groups are taken, in the order of their names' hashes, until a part has its
    share. Where groups are single rows, each part has its share of every class to within one row, and at least one row
    of a class with as many rows as there are parts.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    classes = []
    for index, (_, row) in enumerate(islice(reads, most)):
        is_read = not isinstance(row, UserError)
        group = repr(row[plan.groups]) if plan.groups and is_read else index
        groups[group].append(index)
        name = row[plan.classes] if plan.classes and is_read else ""
        classes.append(repr(getattr(name, "class_name", name)))  # files may number the same classes otherwise
    strata: dict[str, list[tuple[float, list[int]]]] = defaultdict(list)
    order = ValidationSplit(0.0, by_name=True)
    for group, rows in groups.items():
        most_frequent = Counter(classes[index] for index in rows).most_common(1)[0][0]
        strata[most_frequent].append((order.rank(0, str(group)), rows))
    parts = [TRAIN] * len(classes)
    for members in strata.values():
        members.sort()
        for part, rows in _taken(plan.fractions, [rows for _, rows in members]):
            for index in rows:
                parts[index] = part
    return parts


def _taken(fractions: dict[str, float], members: Sequence[list[int]]) -> Iterator[tuple[str, list[int]]]:
    """(part, rows) of the groups of one class that are not for training."""
    total, at, has_all = sum(map(len, members)), 0, len(members) > len(fractions)
    for left, (part, fraction) in zip(range(len(fractions), 0, -1), fractions.items()):
        target, taken = max(round(total * fraction), int(has_all)), 0
        while taken < target and at < len(members) - (left if has_all else 1):
            yield part, members[at]
            taken, at = taken + len(members[at]), at + 1
