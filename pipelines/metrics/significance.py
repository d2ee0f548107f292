"""How certain metrics are: predictions kept beside references, confidence intervals, and tests between two models.

Intervals are percentile bootstrap intervals over examples (Efron and Tibshirani 1993, chapter 13), except for shares of
examples, which have Wilson's. Resamples depend only on the seed and the number of examples, so that two models which
answered the same examples get the same resamples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from ..lazy import np
from ..plugins import METRICS
from ..words import watched

COVERED = 95  # per cent that an interval covers
_KEPT: ContextVar[list["Comparison"] | None] = ContextVar("comparisons", default=None)


@dataclass
class Comparison:
    """What some metrics were computed from: lists of equal length, one entry for each example.

    metrics: their names. probabilities: of all classes, where they are known. rows: the examples' row numbers in their
    split; None where they are not known. part: the name of its task, where a run has several. tokenize:
    evaluation.bleu_tokenize.
    """

    metrics: list[str]
    predictions: list
    references: list
    probabilities: list | None = None
    rows: list[int] | None = None
    part: str | None = None
    tokenize: str = "13a"

    def metric(self, name: str):
        """The metric, which compares them in the same way each time."""
        metric = METRICS[name].load()
        metric.tokenize = self.tokenize
        return metric

    def called(self, name: str) -> str:
        """The name of a metric among the numbers of the run: accuracy, or accuracy_trec for the part trec."""
        return name if self.part is None else f"{name}_{self.part}"

    def of_rows(self, rows: list[int]) -> "Comparison":
        """A copy with the row numbers of its examples; unchanged where there is not one for each example."""
        return replace(self, rows=rows) if len(rows) == len(self.references) else self

    def inputs(self, name: str) -> tuple[list, list]:
        """(predictions, references) as the metric `name` takes them."""
        reads_probabilities = METRICS[name].compares == "probabilities"
        return (self.probabilities if reads_probabilities else self.predictions), self.references


@contextmanager
def kept_comparisons() -> Iterator[list[Comparison]]:
    """A list to which compute_metrics adds every comparison inside the `with` block."""
    comparisons: list[Comparison] = []
    token = _KEPT.set(comparisons)
    try:
        yield comparisons
    finally:
        _KEPT.reset(token)


def keep(comparison: Comparison) -> None:
    """Add a comparison to the list of the surrounding kept_comparisons, if there is one."""
    comparisons = _KEPT.get()
    if comparisons is not None:
        comparisons.append(comparison)


# ------------------------------------------------------------------------------------------------ intervals


def resamples(examples: int, number: int, seed: int) -> "Iterator[np.ndarray]":
    """`number` resamples, (examples,) each: how often each example occurs among `examples` draws with replacement."""
    draw = np.random.default_rng([seed, examples])
    for _ in range(number):
        yield np.bincount(draw.integers(examples, size=examples), minlength=examples)


def resampled_scores(comparison: Comparison, names: list[str], number: int, seed: int) -> "dict[str, np.ndarray]":
    """{metric: (number,) scores of the resamples}."""
    scorers = {name: comparison.metric(name).weighted(*comparison.inputs(name)) for name in names}
    examples = len(comparison.references)
    draws = zip(watched(range(number), "resampling"), resamples(examples, number, seed))
    rows = [[score(weights) for score in scorers.values()] for _, weights in draws]
    return dict(zip(scorers, np.array(rows, dtype=float).T))


def percentiles(scores: "np.ndarray") -> tuple[float, float] | None:
    """The bounds of the middle 95 % of some scores, those that are NaN or infinite left out; None where all are."""
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return None
    low, high = np.percentile(scores, [(100 - COVERED) / 2, (100 + COVERED) / 2])
    return float(low), float(high)


def interval_by_formula(name: str, value: float | None, examples: int) -> dict[str, Any] | None:
    """{"low", "high", "method"} of a metric's 95 % interval on some number of examples; None without a formula."""
    row = METRICS.get(name)
    if value is None or row is None or row.interval is None:
        return None
    low, high = row.interval(value, examples)
    return {"low": low, "high": high, "method": "wilson"}


def intervals(comparison: Comparison, values: dict[str, float], number: int, seed: int) -> dict[str, dict[str, Any]]:
    """{metric, as the comparison calls it: {"low", "high", "method"}} of the 95 % intervals.

    values: the metrics, by the same names. number: of resamples; 0: only intervals that have a formula.
    """
    bounds_of, drawn = {}, []
    for name in comparison.metrics:
        value = values.get(comparison.called(name))
        by_formula = interval_by_formula(name, value, len(comparison.references))
        if by_formula is not None:
            bounds_of[name] = by_formula
        elif number and value is not None:
            drawn.append(name)
    scores = resampled_scores(comparison, drawn, number, seed) if drawn else {}
    for name, values_of_resamples in scores.items():
        bounds = percentiles(values_of_resamples)
        if bounds is not None:
            bounds_of[name] = {"low": bounds[0], "high": bounds[1], "method": f"bootstrap of {number}"}
    return {comparison.called(name): bounds_of[name] for name in comparison.metrics if name in bounds_of}


# ------------------------------------------------------------------------------------------------ two models


def mcnemar(first: "np.ndarray", second: "np.ndarray") -> tuple[int, int, float]:
    """McNemar's exact test (1947; binomial) of two models' right answers, each (examples,) of booleans.

    Returns (examples that only the first has right, those that only the second has right, two-sided p).
    """
    from scipy.stats import binomtest

    alone, other = int((first & ~second).sum()), int((second & ~first).sum())
    return alone, other, float(binomtest(alone, alone + other).pvalue) if alone + other else 1.0


def differences(first: Comparison, second: Comparison, number: int, seed: int) -> dict[str, dict[str, Any]]:
    """How much higher the second model's metrics are than the first's, and how certain that is.

    {metric, as the comparisons call it: {"difference", "p", "test"} and, with resamples, "low" and "high", the 95 %
    interval of the difference}. Metrics that count right answers are tested by McNemar ("first_alone", "second_alone":
    answers that only one has right), the others by the paired bootstrap: p is twice the share of resamples whose
    difference is not on its side of 0, with one resample added to both counts. Both comparisons hold the same examples
    in the same order.
    """

    names = [name for name in first.metrics if name in second.metrics]
    scores = [resampled_scores(each, names, number, seed) if number else {} for each in (first, second)]
    ones = np.ones(len(first.references), dtype=int)
    of_metrics = {}
    for name in names:
        metric = first.metric(name)
        values = [metric.weighted(*each.inputs(name))(ones) for each in (first, second)]
        row = of_metrics[first.called(name)] = {"difference": values[1] - values[0]}
        resampled = scores[1][name] - scores[0][name] if number else np.array([])
        bounds = percentiles(resampled)
        if bounds is not None:
            row |= {"low": bounds[0], "high": bounds[1]}
        right = [metric.right(*each.inputs(name)) for each in (first, second)]
        if right[0] is not None:
            alone, other, p = mcnemar(*right)
            row |= {"p": p, "test": "McNemar, exact", "first_alone": alone, "second_alone": other}
        elif bounds is not None:
            resampled = resampled[np.isfinite(resampled)]
            least = min((resampled <= 0).sum(), (resampled >= 0).sum())
            row |= {"p": min(1.0, 2 * (1 + int(least)) / (1 + len(resampled))), "test": f"paired bootstrap of {number}"}
    return of_metrics


def holm(p: list[float]) -> list[float]:
    """p-values of several tests, raised so that all together err as rarely as one (Holm 1979, section 2).

    The k-th smallest of m p-values is multiplied by m - k + 1; it is at least the one before it and at most 1.
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = adjusted[place] = max(largest, min(1.0, (len(p) - rank) * p[place]))
    return adjusted
