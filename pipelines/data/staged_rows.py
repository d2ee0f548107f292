"""The rows of a run with stages: one long list in the order in which they are trained, whatever lengths they have."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from torch.utils.data import Dataset

from .batch_keys import EPOCH
from .mixture_order import Draw, MixtureOrder
from .rows import Rows


class StagedRows(Rows, Dataset):
    """The rows of all stages, in the order of their training: row n of a run is its n-th one.

    A row's number so says in which step it is trained, is never the same twice, and is all that a run needs to go on.
    Rows that an earlier stage has trained, too, go on where it left them; others begin with a pass of their own.

    rows: of each stage; stages of one length share theirs. shares: of the sources of its rows, those of each stage;
    None: as the rows themselves have them. counts: how many rows each stage trains. seed: of the order.
    """

    def __init__(
        self, rows: Sequence[Rows], shares: Sequence[Mapping[str, float] | None], counts: Sequence[int], seed: int
    ):
        drawn: dict[str, dict[str, int]] = {}
        self.rows, self.counts, self.orders = rows, counts, []
        for own, share, count in zip(rows, shares, counts, strict=True):
            sources = sources_of(own)
            share = share or (own.order.shares if own.is_ordered else dict.fromkeys(sources, 1.0))
            sizes = {name: len(sources[name]) for name in share}
            self.orders.append(MixtureOrder(sizes, share, seed, drawn.get(own.fingerprint)))
            drawn[own.fingerprint] = self.orders[-1].drawn_before(count)
        self.ends = list(accumulate(counts))
        self.fingerprint, self.name, self.parts = rows[0].fingerprint, rows[0].name, rows[0].parts
        self.is_packed = any(own.is_packed for own in rows)

    def __len__(self) -> int:
        return self.ends[-1]

    def draw(self, number: int) -> tuple[Rows, Draw]:
        """(rows of its source, what is drawn of them) of a row."""
        number = self.inside(number)
        stage = bisect_right(self.ends, number)
        found = self.orders[stage].draw(number - (self.ends[stage - 1] if stage else 0))
        return sources_of(self.rows[stage])[found.source], found

    def __getitem__(self, number: int) -> dict:
        rows, found = self.draw(number)
        return rows[found.row] | {EPOCH: found.turn}

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        rows, found = self.draw(number)
        return rows.documents(found.row, row)

    def place(self, number: int) -> tuple[str, int]:
        """(part, number in it) of a row."""
        rows, found = self.draw(number)
        return rows.place(found.row) if rows.parts else (found.source, found.row)

    def passes(self, stage: int, trained: int) -> float:
        """Passes over the rows of a stage's length when `trained` of the stage's have been trained."""
        return sum(self.orders[stage].drawn_before(trained).values()) / len(self.rows[stage])

    def tokens_before(self, number: int) -> dict[str, int]:
        """The tokens of each source in the rows before a number; {} where there are no sources."""
        total = dict.fromkeys(self.parts, 0)
        for rows, order, end, count in zip(self.rows, self.orders, self.ends, self.counts):
            drawn = order.drawn_before(min(count, max(0, number - end + count)))
            for name in total.keys() & order.sizes.keys():
                own = rows.parts[name]
                total[name] += (drawn[name] - order.begun[name]) * own.facts["tokens"] // len(own)
        return total


def sources_of(rows: Rows) -> Mapping[str, Rows]:
    """The sources of which rows are mixed by shares; of others themselves."""
    return rows.parts if rows.is_ordered else {"": rows}
