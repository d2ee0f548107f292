"""The trained model as an objective's `finish` gets it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

SAMPLES = 3  # generated texts that are shown at the end


@dataclass
class FinishedModel:
    """A trained model and how to run it, for metrics and samples that a pass over the rows does not give.

    path: folder or Hub name that it loads from. load: loads it, in evaluation mode, on its device. batch_size: rows
    per forward pass. index, count: this process among those that share the work. gather: a list of this process's
    results -> that of all processes.
    """

    path: str
    load: Callable[[], Any]
    batch_size: int
    index: int = 0
    count: int = 1
    gather: Callable[[list], list] = field(default=list)

    @cached_property
    def model(self):
        """The model, loaded when it is first asked for."""
        return self.load()

    def shared(self, numbers: Sequence[int], answer: Callable[[list[int]], list]) -> list:
        """`answer(numbers)`, in the order of `numbers`; each process computes a share of it."""
        mine = list(numbers[self.index :: self.count])
        results = dict(self.gather(list(zip(mine, answer(mine)))))
        return [results[number] for number in numbers]
