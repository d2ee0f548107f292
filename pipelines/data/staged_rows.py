"""The rows of a run with stages: one long list in the order in which they are trained, whatever lengths they have."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from torch.utils.data import Dataset

from .batch_keys import EPOCH
from .rows import Rows


class ShuffledPasses:
    """Rows of one split again and again, each pass in an order of its own: a function of the seed alone.

    rows: of the split. begin: how many of them were trained before.
    """

    def __init__(self, rows: Rows, seed: int, begin: int = 0):
        self.rows, self.seed, self.begin = rows, seed, begin
        self._order = None, None  # of the pass that was asked for last

    def place(self, number: int) -> tuple[int, int]:
        """(row, how often all rows were trained before it) of the `number`-th one, from 0."""
        turn, inside = divmod(self.begin + number, len(self.rows))
        if self._order[0] != turn:
            self._order = turn, np.random.default_rng((self.seed, turn)).permutation(len(self.rows))
        return int(self._order[1][inside]), turn


class StagedRows(Rows, Dataset):
    """The rows of all stages, in the order of their training: row n of a run is its n-th one.

    A row's number so says in which step it is trained, is never the same twice, and is all that a run needs to go on.
    Rows of a stage that have the length of an earlier one go on where that left them; the others begin.

    rows: of each stage. counts: how many each stage trains.
    """

    def __init__(self, rows: Sequence[Rows], counts: Sequence[int], seed: int):
        drawn: dict[str, int] = {}
        self.stages: list[ShuffledPasses] = []
        for own, count in zip(rows, counts, strict=True):
            kind = own.fingerprint
            self.stages.append(ShuffledPasses(own, seed, drawn.get(kind, 0)))
            drawn[kind] = drawn.get(kind, 0) + count
        self.ends = list(accumulate(counts))
        self.fingerprint, self.name = rows[0].fingerprint, rows[0].name
        self.is_packed = any(own.is_packed for own in rows)

    def __len__(self) -> int:
        return self.ends[-1]

    def stage_of(self, number: int) -> tuple[int, int]:
        """(stage, number in it) of a row."""
        number = self.inside(number)
        stage = bisect_right(self.ends, number)
        return stage, number - (self.ends[stage - 1] if stage else 0)

    def _at(self, number: int) -> tuple[Rows, int, int]:
        """(rows of its stage, number among them, passes over them before it) of a row."""
        stage, inside = self.stage_of(number)
        passes = self.stages[stage]
        return passes.rows, *passes.place(inside)

    def passes(self, stage: int, trained: int) -> float:
        """Passes over the rows of a stage's length when `trained` of the stage's have been trained."""
        return (self.stages[stage].begin + trained) / len(self.stages[stage].rows)

    def __getitem__(self, number: int) -> dict:
        rows, inside, turn = self._at(number)
        return rows[inside] | {EPOCH: turn}

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        rows, inside, _ = self._at(number)
        return rows.documents(inside, row)

    @property
    def parts(self) -> dict[str, Rows]:
        """Those of a stage's rows, which of some objectives are of several."""
        return self.stages[0].rows.parts

    def place(self, number: int) -> tuple[str, int]:
        """(part, number in it) of a row."""
        rows, inside, _ = self._at(number)
        return rows.place(inside)
