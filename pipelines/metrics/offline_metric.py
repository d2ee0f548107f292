"""Base class of the metrics: evaluate's interface, without files or downloads."""

import abc
from collections.abc import Callable

import datasets
import evaluate
import numpy as np


class OfflineMetric(evaluate.Metric, abc.ABC):
    """A metric that is one number. Subclasses set `features` and implement `score(predictions, references)`.

    Args:
        name: key of the result.
        description: one line.
        variant: which average or treatment, where the class has several.
        **kwargs: evaluate.Metric's. With one process everything is kept in memory and nothing is written.
    """

    features: list[datasets.Features]
    signature: str | None = None  # settings and versions that the number depends on, if any
    tokenize = "13a"  # evaluation.bleu_tokenize

    def __init__(self, name: str, description: str, variant: str | None = None, **kwargs):
        self._name, self._description, self.variant = name, description, variant
        super().__init__(config_name=variant, **({"keep_in_memory": kwargs.get("num_process", 1) == 1} | kwargs))

    def _build_data_dir(self) -> str:
        # evaluate would make a folder under ~/.cache/huggingface that stays empty.
        return "" if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        features = type(self).features
        return evaluate.MetricInfo(
            description=self._description,
            citation="",
            inputs_description=f"predictions and references, as {features[0]}",
            features=features,
        )

    def _compute(self, *, predictions, references, **options) -> dict[str, float]:
        return {self._name: float(self.score(predictions, references, **options))}

    @abc.abstractmethod
    def score(self, predictions: list, references: list, **options) -> float:
        """The metric of all predictions and references; `options` are further arguments of `compute`."""

    def remark(self, references: list) -> str | None:
        """What a reader of the number has to know about the references, if anything."""
        return None

    def weighted(self, predictions: list, references: list) -> Callable:
        """A function of weights (examples,), whole numbers: the metric if each example occurred that many times.

        The bootstrap calls it about a thousand times, so subclasses avoid going over the examples again where they can.
        """

        def score(weights) -> float:
            drawn = np.repeat(np.arange(len(references)), weights)
            return float(self.score([predictions[i] for i in drawn], [references[i] for i in drawn]))

        return score

    def right(self, predictions: list, references: list):
        """(examples,) of booleans: which answers are right, if the metric is their share; else None."""
        return None


class CountedMetric(OfflineMetric):
    """A metric computed from sums over the examples. Subclasses implement `counts` and `of_sums`."""

    @abc.abstractmethod
    def counts(self, predictions: list, references: list) -> list[tuple[float, ...]]:
        """The numbers of each example that are summed."""

    @abc.abstractmethod
    def of_sums(self, *sums: float) -> float:
        """The metric, computed from the sums of `counts`."""

    def score(self, predictions, references):
        return self.of_sums(*map(sum, zip(*self.counts(predictions, references))))

    def weighted(self, predictions, references):
        counts = np.asarray(self.counts(predictions, references))
        return lambda weights: float(self.of_sums(*(weights @ counts).tolist()))


class MeanMetric(CountedMetric):
    """A metric that is the mean of one number per example. Subclasses implement `each`."""

    @abc.abstractmethod
    def each(self, predictions: list, references: list) -> list[float]:
        """The number of each example."""

    def counts(self, predictions, references):
        return [(value, 1) for value in self.each(predictions, references)]

    def of_sums(self, total, number):
        return total / number


def pairs_of(dtype: str, several: bool = False) -> datasets.Features:
    """Features of a prediction and a reference of the same type; several: each of the two is a list of that type."""
    value = datasets.Sequence(datasets.Value(dtype)) if several else datasets.Value(dtype)
    return datasets.Features({"predictions": value, "references": value})


FEATURES = {
    "classes": pairs_of("int64"),
    "probabilities": datasets.Features(
        {"predictions": datasets.Sequence(datasets.Value("float64")), "references": datasets.Value("int64")}
    ),
    "label_sets": pairs_of("int64", several=True),
    "numbers": pairs_of("float64"),
    "texts": pairs_of("string"),
    "tags": pairs_of("string", several=True),
    "answers": datasets.Features(
        {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
    ),
}


def of_function(compares: str, function) -> type[OfflineMetric]:
    """An OfflineMetric over a function (predictions, references) -> number."""

    class FunctionMetric(OfflineMetric):
        features = [FEATURES[compares]]

        def score(self, predictions, references, **options):
            return function(predictions, references, **options)

    return FunctionMetric
