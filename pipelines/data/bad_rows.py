"""Examples that cannot be used: once one is met all are looked for, and then named in one message or left out."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import UserError
from ..words import counted
from .documents import in_batches
from .examples import Example, Examples

NAMED = 20  # bad rows that a message names


class Probe(list):
    """Some examples in place of those of a split."""

    split = name = ""


class BadRow(NamedTuple):
    """index: in its source. sentence: what is wrong, with the place."""

    index: int
    place: str
    sentence: str

    @property
    def reason(self) -> str:
        """The sentence without place and values: equal for equal faults."""
        column = re.match(r"(?:task|objective)\.\w+=('[^']*')", self.sentence)
        said = self.sentence.split(self.place, 1)[-1].split(";")[0].strip(" :,.")
        said = re.sub(r"'[^']*'|\"[^\"]*\"|\b\d[\d.,]*", "…", said)
        return f"{column[1]} {said}" if column else said


def bad_rows_of(examples: Examples, attempt: Callable[[Probe], None]) -> list[BadRow]:
    """The rows of a split that cannot be read, or of which `attempt` raises a UserError.

    Empty where none can be used: then something else is wrong than some rows.
    """
    found, total = [], 0
    for batch in in_batches(examples.numbered()):
        total += len(batch)
        good = [(index, example) for index, example in batch if not isinstance(example[1], UserError)]
        unread = [BadRow(index, place, str(row)) for index, (place, row) in batch if isinstance(row, UserError)]
        found += sorted([*unread, *_failing(good, attempt)])
    return found if len(found) < total else []


def _failing(batch: list[tuple[int, Example]], attempt: Callable[[Probe], None]) -> Iterator[BadRow]:
    """Those of a batch that fail: halves of halves, so that a good batch is tried once."""
    try:
        attempt(Probe(example for _, example in batch))
    except UserError as error:
        if len(batch) == 1:
            index, (place, _) = batch[0]
            yield BadRow(index, place, str(error))
            return
        middle = len(batch) // 2
        yield from _failing(batch[:middle], attempt)
        yield from _failing(batch[middle:], attempt)


def refusal(found: list[BadRow], error: UserError) -> UserError:
    """The one message about all of them. error: that of the first one, which alone says enough."""
    if len(found) == 1:
        return UserError(f"{str(error).rstrip('.')} (data.bad_rows=skip leaves the row out)")
    lines = [f"{len(found):,} rows cannot be used; data.bad_rows=skip leaves them out"]
    lines += [row.sentence for row in found[:NAMED]]
    if len(found) > NAMED:
        lines.append(f"and {len(found) - NAMED:,} more: {reasons(found[NAMED:])}")
    return UserError("\n  ".join(lines))


def reasons(found: list[BadRow]) -> str:
    """`2 'text' holds null, not text; 1 not valid JSON`."""
    return "; ".join(f"{number:,} {reason}" for reason, number in Counter(row.reason for row in found).most_common())


def leave_out(examples: Examples, found: list[BadRow]) -> None:
    """Make the split one without these rows, beside those that it lacks already."""
    examples.left_out.update({row.index: row for row in found})
    rows = list(examples.left_out.values())
    examples.left_out_words = f"{counted(len(rows), 'row')} left out (data.bad_rows=skip): {reasons(rows)}"
