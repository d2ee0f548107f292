"""The interface of a split's rows to the training. Standard library only."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .account import Account


class Rows:
    """Rows of one split: `len(rows)` and `rows[i]`, a dict of tensors (or, of a stream, iteration alone).

    A subclass sets `fingerprint`, `name` and, as far as it differs, the rest.

    fingerprint: identity of the rows' content, equal in every process. name: of the data, for people. facts: numbers
    worth reporting, for run.json and the model card. row_lengths: (N,) tokens of each row where rows differ in length:
    batches then hold rows of similar length; None: any order does. is_packed: whether a row may hold several documents.
    is_stream: whether rows can only be iterated. account: of what came in for them. notes: sentences a user should
    read, the account's among them. parts: name -> the rows that these are made of, if any: `place(number)` then begins
    with the name. is_ordered: whether rows are in training order already, so that they are read one after the other.
    is_endless: whether numbers beyond the last one are the rows of further epochs. stores: the TokenStores of plain
    text.
    """

    fingerprint: str
    name: str
    facts: dict[str, Any] = {}
    row_lengths = None
    is_packed = False
    is_stream = False
    account = Account()
    notes: tuple[str, ...] | list[str] = ()
    parts: Mapping[str, "Rows"] = MappingProxyType({})
    is_ordered = False
    is_endless = False
    stores: Sequence[Any] = ()

    def report(self) -> dict[str, Any]:
        """What run.json holds of the split: its identity, facts, account and notes."""
        told = {"account": self.account.to_json(), "notes": list(self.notes)}
        return {"fingerprint": self.fingerprint} | self.facts | {name: of for name, of in told.items() if of}

    @property
    def identity(self) -> str:
        """What a resumed run compares: the fingerprint."""
        return self.fingerprint

    @property
    def beyond(self) -> int:
        """A number that no row of any epoch has; rows with this number only fill up a batch."""
        return 2**62 if self.is_endless else len(self)

    def inside(self, index: int) -> int:
        """The number, from 0, of a row that may be counted from the end. Raises IndexError where there is none."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return index % len(self)

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        """The documents in row `number`: (document, its first token in the row, number of tokens); [] if unknown."""
        return []
