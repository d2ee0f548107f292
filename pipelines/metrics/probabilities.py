"""Metrics of the probabilities that a model gives to each class."""

import numpy as np

from .offline_metric import FEATURES, OfflineMetric

BINS = 15  # as Guo et al. 2017, section 2


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
