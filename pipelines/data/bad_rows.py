"""Rows that cannot be used: when one is met, all of them are searched for, then named in one error or left out."""

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..errors import UserError
from .account_words import listed
from .documents import in_batches
from .examples import Part
from .reader import Example

NAMED = 20  # bad rows that an error names


class Probe(list):
    """A list of examples that takes the place of a split's Examples."""

    split = name = ""


class BadRow(NamedTuple):
    """index: the row's number in its source. sentence: what is wrong with it, with its place."""

    index: int
    place: str
    sentence: str

    @property
    def reason(self) -> str:
        """The sentence without place and values, but for classes, so that equal faults have equal reasons."""
        column = re.match(r"(?:task|objective)\.\w+=('[^']*')", self.sentence)
        fault = self.sentence.split(self.place, 1)[-1].split(";")[0].strip(" :,.")
        fault = re.sub(r"(?<!unknown class )(?:'[^']*'|\"[^\"]*\")|(?<!UTF-)\b\d[\d.,]*", "…", fault)
        return f"{column[1]} {fault}" if column else fault


def bad_rows_of(examples: Part, attempt: Callable[[Probe], None]) -> list[BadRow]:
    """The rows of a split that cannot be read, or for which `attempt` raises a UserError."""

    def nothing_of(rows: list[tuple[int, Example]]) -> list[None]:
        attempt(Probe(example for _, example in rows))
        return [None] * len(rows)

    bad = []
    for batch in in_batches(examples.numbered()):
        good = [(index, example) for index, example in batch if not isinstance(example[1], UserError)]
        errors = {index: error for (index, _), error in zip(good, tried(good, nothing_of))}
        found = [(index, place, errors.get(index, row)) for index, (place, row) in batch]
        bad += [BadRow(index, place, str(error)) for index, place, error in found if error is not None]
    return bad


def tried(items: list, attempt: Callable[[list], list]) -> list:
    """What `attempt` makes of items, one for each; in place of it the UserError of one that fails, found by bisection,
    so that items without a fault are tried only once."""
    try:
        return attempt(items) if items else []
    except UserError as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return tried(items[:middle], attempt) + tried(items[middle:], attempt)


def refusal(found: list[BadRow], error: UserError) -> UserError:
    """One error that names all bad rows. error: the error of the first one, sufficient if it is the only one."""
    found = [*{row.sentence: row for row in found}.values()]  # of a file that stands for two splits
    if len(found) == 1:
        return UserError(f"{str(error).rstrip('.')} (data.bad_rows=skip leaves the row out)")
    lines = [f"{len(found):,} rows cannot be used; data.bad_rows=skip leaves them out"]
    lines += [row.sentence for row in found[:NAMED]]
    if len(found) > NAMED:
        lines.append(f"and {len(found) - NAMED:,} more: {reasons(found[NAMED:])}")
    return UserError("\n  ".join(lines))


def reasons(found: Collection[BadRow]) -> str:
    """The number of rows for each reason: `2 'text' holds null, not text; 1 not valid JSON`."""
    counts = Counter(row.reason for row in found)
    return listed([f"{number:,} {reason}" for reason, number in counts.most_common()], "; ", NAMED)


def leave_out(examples: Part, found: list[BadRow]) -> None:
    """Leave these rows out of the split, in addition to those left out already."""
    examples.left_out = {**examples.left_out, **{row.index: row for row in found}}
