"""The rows of a run with stages: one long list in training order, whatever their lengths."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from torch.utils.data import Dataset

from .batch_keys import EPOCH
from .mixture_order import Draw, MixtureOrder
from .rows import Rows


class StagedRows(Rows, Dataset):
    """The rows of all stages in training order: row n is the n-th that the run trains.

    So a row's number tells in which step it is trained, is unique, and is all that a run needs to resume. A stage goes
    on in its rows where an earlier stage with the same rows left off; other rows begin with a pass of their own.

    rows: the rows of each stage; stages of one length share theirs. shares: each stage's shares of the sources of its
    rows; None: those of the rows themselves. counts: the number of rows that each stage trains. seed: of the order.
    """

    def __init__(
        self, rows: Sequence[Rows], shares: Sequence[Mapping[str, float] | None], counts: Sequence[int], seed: int
    ):
        drawn: dict[str, dict[str, int]] = {}
        self.rows, self.counts, self.orders = rows, counts, []
        for rows_of_stage, share, count in zip(rows, shares, counts, strict=True):
            sources = sources_of(rows_of_stage)
            share = share or (rows_of_stage.order.shares if rows_of_stage.is_ordered else dict.fromkeys(sources, 1.0))
            sizes = {name: len(sources[name]) for name in share}
            self.orders.append(MixtureOrder(sizes, share, seed, drawn.get(rows_of_stage.fingerprint)))
            drawn[rows_of_stage.fingerprint] = self.orders[-1].drawn_before(count)
        self.ends = list(accumulate(counts))
        self.fingerprint, self.name, self.parts = rows[0].fingerprint, rows[0].name, rows[0].parts
        self.is_packed = any(rows_of_stage.is_packed for rows_of_stage in rows)

    def __len__(self) -> int:
        return self.ends[-1]

    def draw(self, number: int) -> tuple[Rows, Draw]:
        """(the rows of its source, the Draw) of a row."""
        number = self.inside(number)
        stage = bisect_right(self.ends, number)
        drawn = self.orders[stage].draw(number - (self.ends[stage - 1] if stage else 0))
        rows = sources_of(self.rows[stage])[drawn.source]
        return rows, drawn._replace(row=drawn.row + drawn.turn * len(rows) * rows.is_endless)

    def __getitem__(self, number: int) -> dict:
        rows, drawn = self.draw(number)
        return rows[drawn.row] | {EPOCH: drawn.turn}

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        rows, drawn = self.draw(number)
        return rows.documents(drawn.row, row)

    def place(self, number: int) -> tuple[str, int]:
        """(part, number in it) of a row."""
        rows, drawn = self.draw(number)
        return rows.place(drawn.row) if rows.parts else (drawn.source, drawn.row)

    def passes(self, stage: int, trained: int) -> float:
        """Passes over a stage's rows, earlier stages included, when `trained` rows of the stage have been trained."""
        return sum(self.orders[stage].drawn_before(trained).values()) / len(self.rows[stage])

    def tokens_before(self, number: int) -> dict[str, int]:
        """The tokens of each source in the rows before a number; {} where there are no sources."""
        total = dict.fromkeys(self.parts, 0)
        for rows, order, end, count in zip(self.rows, self.orders, self.ends, self.counts):
            drawn = order.drawn_before(min(count, max(0, number - end + count)))
            for name in total.keys() & order.sizes.keys():
                source = rows.parts[name]
                total[name] += (drawn[name] - order.begun[name]) * source.facts["tokens"] // len(source)
        return total


def sources_of(rows: Rows) -> Mapping[str, Rows]:
    """The sources of rows that are mixed by shares; other rows are their own single source."""
    return rows.parts if rows.is_ordered else {"": rows}
