"""The interface of a split's rows to the training."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from ..errors import UserError
from ..lazy import np, torch
from .account import Account
from .account_words import unusual
from .batch_keys import EPOCH, ROW_IDS

BEGINNING = {"pass": 0}  # the position in rows that are read pass after pass


def evenly_spread(total: int, most: int) -> list[int]:
    """At most `most` of the numbers from 0 to total - 1, evenly spread from the first."""
    return list(range(total)) if most >= total else [i * total // most for i in range(most)]


class Rows:
    """Rows of one split: `len(rows)` and `rows[i]`, a dict of tensors.

    fingerprint: identity of the rows' content, equal in every process. name: of the data, for people. facts: numbers
    worth reporting, for run.json and the model card. row_lengths: (N,) tokens of each row where rows differ in length:
    batches then hold rows of similar length; None: any order does. is_packed: whether a row may hold several documents.
    account: of what came in for them. parts: name -> the rows that these are made of, if any: `place(number)` then
    begins with the name. stores: the TokenStores of plain text.
    """

    fingerprint: str
    name: str
    facts: dict[str, Any] = {}
    row_lengths = None
    is_packed = False
    account = Account()
    parts: Mapping[str, "Rows"] = MappingProxyType({})
    stores: Sequence[Any] = ()
    num_places = 1  # of which a position in the rows consists, where they are streamed from several files

    def report(self) -> dict[str, Any]:
        """What run.json holds of the split: its identity, facts, account and notes."""
        told = {"account": self.account.to_json(), "notes": self.notes}
        return {"fingerprint": self.fingerprint} | self.facts | {name: of for name, of in told.items() if of}

    @property
    def notes(self) -> list[str]:
        """Sentences about the account that a user should read, those of parts with their names."""
        of_parts = [f"{name}: {note}" for name, rows in self.parts.items() for note in rows.notes]
        return of_parts if self.parts else unusual(self.account)

    @property
    def identity(self) -> str:
        """What a resumed run compares: the fingerprint."""
        return self.fingerprint

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        """The documents in row `number`: (document, its first token in the row, number of tokens); [] if unknown.

        row: the row itself, which alone says it where rows are streamed.
        """
        return []

    def place(self, number: int) -> tuple[str, int]:
        """(part, number in it) of a row; rows without parts are one without a name."""
        return "", number

    # ---- numbers

    def of_examples(self, most: int) -> list[int]:
        """Numbers of the rows of at most `most` examples, evenly spread."""
        return evenly_spread(len(self), most)

    def inside(self, index: int) -> int:
        """The number, from 0, of a row that may be counted from the end. Raises IndexError where there is none."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return index % len(self)

    @property
    def in_epoch(self) -> float:
        """The number of rows in an epoch; infinity where a stream has no known length."""
        return len(self)

    def number_in(self, epoch: int, place: int) -> int:
        """The number of the row at a place of an epoch: the place itself where each epoch has the same rows."""
        return place

    def tokens_after(self, steps: int, per_step: int) -> dict[str, int]:
        """The tokens of each source that the first steps of a run train; {} for rows that are not mixed of sources."""
        return {}

    # ---- reading

    def sampler(self, per_step: int, seed: int, at_random: Callable[[], Iterable[int]]) -> Iterable[int]:
        """The order in which an epoch trains the rows: at random, unless it matters which rows share a step.

        per_step: rows of an optimizer step.
        """
        if self.row_lengths is None:
            return at_random()
        from .length_batching import LengthGroupedSampler

        # Grouped by optimizer step: its rows do not depend on the number of processes and micro-batches.
        return LengthGroupedSampler(self.row_lengths, per_step, seed)

    def pass_from(self, number: int, place: Any = None, seed: int = 0) -> Iterator[tuple[dict, Any]]:
        """The rows of pass `number` after a place, each with its number, its epoch and the place after it, as JSON.

        None is the beginning. The order depends on the seed and the pass.
        """
        done = (place or {"rows": 0})["rows"]
        order = np.random.default_rng((seed, number)).permutation(len(self))[done:].tolist()
        for index in order:
            done, row = done + 1, self.number_in(number, index)
            yield self[row] | {ROW_IDS: torch.tensor(row), EPOCH: torch.tensor(number)}, {"rows": done}

    # ---- looking

    def samples(self, wanted: int) -> list[int]:
        """Numbers of some rows, evenly spread from first to last, so that a mixture's last part is shown, too."""
        wanted = min(wanted, len(self))
        return sorted({round(i * (len(self) - 1) / max(1, wanted - 1)) for i in range(wanted)})

    def previewed(self, wanted: int) -> Iterator[tuple[int, dict]]:
        """(number, row) of evenly spread rows, one of which holds several documents if any row does."""
        chosen = self.samples(wanted)
        if self.is_packed and not any(len(self.documents(i)) > 1 for i in chosen):
            packed = next((i for i in range(len(self)) if len(self.documents(i)) > 1), chosen[0])
            nearest = min(range(len(chosen)), key=lambda n: abs(chosen[n] - packed))
            chosen = sorted({*chosen[:nearest], packed, *chosen[nearest + 1 :]})
        return ((number, self[number]) for number in chosen)


class Streamed(Rows):
    """Rows that can only be read one after the other, pass after pass; each says its number (`row_ids`) and epoch.

    A subclass overrides `__iter__`, if all passes are alike, or `pass_from`.
    """

    in_epoch = math.inf

    def __iter__(self) -> Iterator[dict]:
        return (row for row, _ in self.pass_from(0))

    def pass_from(self, number: int, place: Any = None, seed: int = 0) -> Iterator[tuple[dict, Any]]:
        """As of all rows, but the order is the stream's. A place of None: it is found again by counting rows."""
        return ((row, None) for row in self)

    def samples(self, wanted: int) -> list[int]:
        """No row: those of a stream cannot be read by number."""
        return []

    def previewed(self, wanted: int) -> Iterator[tuple[int, dict]]:
        return zip(range(wanted), self)


class PlainRows(Rows):
    """A sequence of rows that does not say more of itself, such as a list, as Rows."""

    fingerprint = name = ""

    def __init__(self, rows: Sequence[dict]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict:
        return self.rows[number]


def steps_of_epoch(rows: float, per_step: int) -> int | None:
    """Optimizer steps of one pass over so many rows; None where their number is not known, as Rows.in_epoch says."""
    return max(1, -(-rows // per_step)) if rows < math.inf else None


def passes_from(rows: Rows, position: dict = BEGINNING, seed: int = 0) -> Iterator[tuple[dict, dict]]:
    """The rows from a position on, pass after pass, each with the position after it.

    seed: of the order of rows that are no stream.
    """
    while True:
        number, done = position["pass"], position.get("rows", 0)
        again = 0 if "state" in position else done  # rows that are made once more, as no place is known
        for row, place in islice(rows.pass_from(number, position.get("state"), seed), again, None):
            done += 1
            yield row, {"pass": number, "rows": done} | ({} if place is None else {"state": place})
        if not done:
            raise UserError(f"data: {rows.name} gives no row to train on.")
        position = {"pass": number + 1}


def packed_row(splits: Iterable[Rows]) -> tuple[Rows, int, dict]:
    """A split with packed rows, the number of one of them and the row: the last, which may be padded.

    Of a stream it is the first row; another split is preferred. splits: some of them packed.
    """
    rows = min((rows for rows in splits if rows.is_packed), key=lambda rows: isinstance(rows, Streamed))
    if isinstance(rows, Streamed):
        return rows, 0, next(iter(rows))
    return rows, len(rows) - 1, rows[len(rows) - 1]
