"""The metrics of a run with their intervals: for shares of examples Wilson's (1927).

`anyformer evaluate` computes bootstrap intervals for other metrics.
"""

import math
from dataclasses import dataclass

from ..words import short_metric
from .interpret import between, interval_of_share
from .run_log import RunLog


@dataclass
class Measured:
    """A metric of a split. low, high: its 95 % interval; None without a formula or a known number of examples."""

    split: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    examples: int | None = None
    is_best: bool = False  # of several runs compared

    @property
    def words(self) -> str:
        """The value as it is printed."""
        return short_metric(self.value)

    @property
    def interval(self) -> str:
        """The interval as it is printed; empty where there is none."""
        return "" if self.low is None else between(self.low, self.high)[1:-1].removeprefix("95 %: ")


def measured(log: RunLog) -> list[Measured]:
    table = []
    for name, value in log.metrics.items():
        split, _, metric = name.partition("_")
        facts = log.run.get("data", {}).get(split) or {}
        examples = facts.get("examples")
        if not log.is_finished:
            examples = min(examples or 0, log.section("evaluation").get("max_rows") or math.inf) or None
        one = Measured(split, metric, value, examples=examples)
        bounds = interval_of_share(metric, value, facts | {"examples": examples})
        if bounds is not None:
            one.low, one.high = bounds
        table.append(one)
    return table
