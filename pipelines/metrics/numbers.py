"""Metrics of numbers: correlations by scipy, calibration of class probabilities, rewards of answers.

A reward is that of direct preference optimization (Rafailov et al. 2023, section 4): beta times how much higher an
answer's log-likelihood is than by the reference model. Chosen answers are the predictions, rejected the references.
"""

import warnings

import numpy as np

from .offline_metric import FEATURES, MeanMetric, OfflineMetric, pairs_of

BINS = 15  # of confidence, as in Guo et al. 2017, section 2


class Correlation(OfflineMetric):
    """Pearson's or Spearman's, between -1 and 1; NaN where it is undefined: predictions or references are all equal, or
    there is just one."""

    features = [pairs_of("float64")]

    def score(self, predictions, references):
        import scipy.stats

        if len(references) < 2:  # pearsonr would raise
            return float("nan")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.stats.ConstantInputWarning)  # the result, NaN, shows it
            return getattr(scipy.stats, f"{self._name}r")(predictions, references).statistic


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """(N,) probabilities -> the numbers of their bins, from 0; of 15 equal bins, bin m holds (m / 15, (m + 1) / 15]."""
    return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


class ExpectedCalibrationError(OfflineMetric):
    """Mean distance of confidence and accuracy (Guo et al. 2017, eq. 3), over 15 bins of equal width.

    `predictions` holds the probabilities of all classes for each example, `references` its class. The confidence of an
    answer is the highest probability; bin m holds those in ((m - 1) / 15, m / 15].
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
    """Predictions are the rewards of the chosen answers, references those of the rejected ones."""

    features = [pairs_of("float64")]

    def each(self, predictions, references):
        return self.right(predictions, references).astype(float).tolist()

    def right(self, predictions, references):
        return np.greater(predictions, references)


class RewardMargin(MeanMetric):
    """Predictions are the rewards of the chosen answers, references those of the rejected ones."""

    features = [pairs_of("float64")]

    def each(self, predictions, references):
        return np.subtract(predictions, references).tolist()
