"""Predictions beside references: kept while something is measured, how sure their metrics are, and two models compared.

Intervals are of the percentile bootstrap over examples (Efron and Tibshirani 1993, chapter 13), but for shares of
examples, which have Wilson's. Resamples are drawn by a seed and the number of examples alone, so that two models which
answered the same examples get the same ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from ..lazy import np
from ..plugins import METRICS
from ..words import watched

COVERED = 95  # per cent of an interval
_KEPT: ContextVar[list["Comparison"] | None] = ContextVar("comparisons", default=None)


@dataclass
class Comparison:
    """What some metrics were computed of: equally long lists, an entry for each example.

    metrics: their names. probabilities: of each class, where they were at hand. rows: the examples' numbers in their
    split; None where that is not known. part: of several tasks in one run, the one that it is of.
    """

    metrics: list[str]
    predictions: list
    references: list
    probabilities: list | None = None
    rows: list[int] | None = None
    part: str | None = None

    def called(self, name: str) -> str:
        """What a metric of it is called among the numbers of the run: accuracy, or accuracy_trec of the part trec."""
        return name if self.part is None else f"{name}_{self.part}"

    def of_rows(self, rows: list[int]) -> "Comparison":
        """The same with the numbers of its rows, one for each example, in order; unchanged where some have none."""
        return replace(self, rows=rows) if len(rows) == len(self.references) else self

    def inputs(self, name: str) -> tuple[list, list]:
        """(predictions, references) as the metric `name` takes them."""
        reads_probabilities = METRICS[name].compares == "probabilities"
        return (self.probabilities if reads_probabilities else self.predictions), self.references


@contextmanager
def kept_comparisons() -> Iterator[list[Comparison]]:
    """A list, to which compute_metrics adds whatever it compares while this lasts."""
    found: list[Comparison] = []
    token = _KEPT.set(found)
    try:
        yield found
    finally:
        _KEPT.reset(token)


def keep(comparison: Comparison) -> None:
    """Add a comparison to the list of kept_comparisons, where there is one."""
    kept = _KEPT.get()
    if kept is not None:
        kept.append(comparison)


# ------------------------------------------------------------------------------------------------ intervals


def resamples(examples: int, number: int, seed: int) -> "Iterator[np.ndarray]":
    """`number` times (examples,): how often each example is among as many drawn with replacement."""
    draw = np.random.default_rng([seed, examples])
    for _ in range(number):
        yield np.bincount(draw.integers(examples, size=examples), minlength=examples)


def resampled_scores(comparison: Comparison, names: list[str], number: int, seed: int) -> "dict[str, np.ndarray]":
    """{metric: (number,) scores of the resamples}."""
    scorers = {name: METRICS[name].load().weighted(*comparison.inputs(name)) for name in names}
    examples = len(comparison.references)
    draws = zip(watched(range(number), "resampling"), resamples(examples, number, seed))
    rows = [[score(weights) for score in scorers.values()] for _, weights in draws]
    return dict(zip(scorers, np.array(rows, dtype=float).T))


def percentiles(scores: "np.ndarray") -> tuple[float, float] | None:
    """The bounds that hold the middle 95 % of some scores; None where no score is a number."""
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return None
    low, high = np.percentile(scores, [(100 - COVERED) / 2, (100 + COVERED) / 2])
    return float(low), float(high)


def interval_by_formula(name: str, value: float | None, examples: int) -> dict[str, Any] | None:
    """{"low", "high", "method"} of the 95 % interval of a metric of so many examples; None where it has no formula."""
    row = METRICS.get(name)
    if value is None or row is None or row.interval is None:
        return None
    low, high = row.interval(value, examples)
    return {"low": low, "high": high, "method": "wilson"}


def intervals(comparison: Comparison, values: dict[str, float], number: int, seed: int) -> dict[str, dict[str, Any]]:
    """{metric, as the comparison calls it: {"low", "high", "method"}} of the 95 % intervals.

    values: by the same names. number: of resamples; 0: only those that have a formula.
    """
    found, drawn = {}, []
    for name in comparison.metrics:
        value = values.get(comparison.called(name))
        by_formula = interval_by_formula(name, value, len(comparison.references))
        if by_formula is not None:
            found[name] = by_formula
        elif number and value is not None:
            drawn.append(name)
    scores = resampled_scores(comparison, drawn, number, seed) if drawn else {}
    for name, of_metric in scores.items():
        bounds = percentiles(of_metric)
        if bounds is not None:
            found[name] = {"low": bounds[0], "high": bounds[1], "method": f"bootstrap of {number}"}
    return {comparison.called(name): found[name] for name in comparison.metrics if name in found}


# ------------------------------------------------------------------------------------------------ two models


def mcnemar(first: "np.ndarray", second: "np.ndarray") -> tuple[int, int, float]:
    """McNemar's exact test (1947; binomial) of two models' right answers, each (examples,) of booleans.

    Returns (examples that the first alone has right, the second alone, two-sided p).
    """
    from scipy.stats import binomtest

    alone, other = int((first & ~second).sum()), int((second & ~first).sum())
    return alone, other, float(binomtest(alone, alone + other).pvalue) if alone + other else 1.0


def differences(first: Comparison, second: Comparison, number: int, seed: int) -> dict[str, dict[str, Any]]:
    """What the second model has more of each metric than the first, and how sure that is.

    {metric, as the comparisons call it: {"difference", "p", "test"} and, with resamples, "low" and "high", the 95 %
    interval of the difference}.
    Metrics that count right answers are tested by McNemar ("first_alone", "second_alone": answers that one alone has
    right), the others by the paired bootstrap: p is twice the share of resamples in which the difference is not on its
    side of 0, with one resample added to each side. Both comparisons are of the same examples in the same order.
    """

    names = [name for name in first.metrics if name in second.metrics]
    scores = [resampled_scores(each, names, number, seed) if number else {} for each in (first, second)]
    whole = np.ones(len(first.references), dtype=int)
    found = {}
    for name in names:
        metric = METRICS[name].load()
        values = [metric.weighted(*each.inputs(name))(whole) for each in (first, second)]
        row = found[first.called(name)] = {"difference": values[1] - values[0]}
        drawn = scores[1][name] - scores[0][name] if number else np.array([])
        bounds = percentiles(drawn)
        if bounds is not None:
            row |= {"low": bounds[0], "high": bounds[1]}
        right = [metric.right(*each.inputs(name)) for each in (first, second)]
        if right[0] is not None:
            alone, other, p = mcnemar(*right)
            row |= {"p": p, "test": "McNemar, exact", "first_alone": alone, "second_alone": other}
        elif bounds is not None:
            drawn = drawn[np.isfinite(drawn)]
            least = min((drawn <= 0).sum(), (drawn >= 0).sum())
            row |= {"p": min(1.0, 2 * (1 + int(least)) / (1 + len(drawn))), "test": f"paired bootstrap of {number}"}
    return found


def holm(p: list[float]) -> list[float]:
    """The p of several tests, each raised so that all together err as seldom as one (Holm 1979, section 2).

    The k-th smallest of m counts m - k + 1 times, no less than the one before it, and 1 at most.
    """
    found, so_far = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        so_far = found[place] = max(so_far, min(1.0, (len(p) - rank) * p[place]))
    return found
