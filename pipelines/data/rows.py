"""What the training asks of the rows of a split. Standard library only."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class Rows:
    """Rows of one split: `len(rows)` and `rows[i]`, a dict of tensors (or, of a stream, iteration alone).

    A subclass sets `fingerprint`, `name` and, as far as it differs, the rest.

    fingerprint: identity of the rows' content, equal in every process. name: of the data, for people. facts: numbers
    worth reporting, for run.json and the model card. row_lengths: (N,) tokens of each row where rows differ in length:
    batches then hold rows of similar length; None: any order does. is_packed: whether a row may hold several documents.
    is_stream: whether rows can only be iterated. notes: sentences a user should read. parts: name -> the rows that
    these are made of, where they are: `place(number)` then begins with the name. is_ordered: whether rows are to be
    read one after the other, because their order is made already; they then go on after the last one, with the rows of
    further epochs. stores: what the texts of plain text are kept in (TokenStore).
    """

    fingerprint: str
    name: str
    facts: dict[str, Any] = {}
    row_lengths = None
    is_packed = False
    is_stream = False
    notes: tuple[str, ...] | list[str] = ()
    parts: Mapping[str, "Rows"] = MappingProxyType({})
    is_ordered = False
    stores: Sequence[Any] = ()

    def report(self) -> dict[str, Any]:
        """What run.json holds of the split: its identity, facts and notes."""
        return {"fingerprint": self.fingerprint} | self.facts | ({"notes": list(self.notes)} if self.notes else {})

    @property
    def identity(self) -> str:
        """What a resumed run compares: the fingerprint."""
        return self.fingerprint

    @property
    def beyond(self) -> int:
        """A number that no row of any epoch has: rows numbered so only fill a batch."""
        return len(self)

    def inside(self, index: int) -> int:
        """The number, from 0, of a row that may be counted from the end. Raises IndexError where there is none."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return index % len(self)

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        """The documents in row `number`: (document, first token of it in the row, tokens); none of an example."""
        return []
