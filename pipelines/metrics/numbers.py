"""Metrics of numbers: correlations by scipy, probabilities of classes, rewards of answers.

A reward is that of direct preference optimization (Rafailov et al. 2023, section 4): beta times how much likelier an
answer is than by the reference model. Those of chosen answers stand beside those of the rejected ones.
"""

import warnings

import numpy as np

from .offline_metric import FEATURES, MeanMetric, OfflineMetric, pairs_of

BINS = 15  # of confidence, as Guo et al. 2017, section 2


class Correlation(OfflineMetric):
    """Between -1 and 1; NaN where predictions or references are all equal, or one, because none exists then."""

    features = [pairs_of("float64")]
    function: str  # name in scipy.stats

    def score(self, predictions, references):
        import scipy.stats

        if len(references) < 2:  # which pearsonr refuses
            return float("nan")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.stats.ConstantInputWarning)  # the result, NaN, shows it
            return getattr(scipy.stats, self.function)(predictions, references).statistic


class Pearson(Correlation):
    function = "pearsonr"


class Spearman(Correlation):
    function = "spearmanr"


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """(N,) probabilities -> the numbers, from 0, of their bins of equal width; bin m holds those in (m, m + 1] / 15."""
    return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


class ExpectedCalibrationError(OfflineMetric):
    """Mean distance of confidence and accuracy (Guo et al. 2017, eq. 3), over 15 bins of equal width.

    `predictions` holds a row of probabilities for each example, `references` its class. The confidence of an answer is
    its probability; bin m holds those in ((m - 1) / 15, m / 15].
    """

    features = [FEATURES["probabilities"]]

    def score(self, predictions, references):
        return self.weighted(predictions, references)(np.ones(len(references)))

    def weighted(self, predictions, references):
        predictions, references = np.asarray(predictions, dtype=float), np.asarray(references)
        confidence, right = predictions.max(-1), predictions.argmax(-1) == references
        number = bin_of(confidence)
        gap = right - confidence
        return lambda weights: float(
            np.abs(np.bincount(number, weights=weights * gap, minlength=BINS)).sum() / weights.sum()
        )


class RewardAccuracy(MeanMetric):
    """Predictions are the chosen answers' rewards, references the rejected ones'."""

    features = [pairs_of("float64")]

    def each(self, predictions, references):
        return self.right(predictions, references).astype(float).tolist()

    def right(self, predictions, references):
        return np.greater(predictions, references)


class RewardMargin(MeanMetric):
    """Predictions are the chosen answers' rewards, references the rejected ones'."""

    features = [pairs_of("float64")]

    def each(self, predictions, references):
        return np.subtract(predictions, references).tolist()
