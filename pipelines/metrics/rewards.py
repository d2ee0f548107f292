"""How well a model tells preferred answers: rewards of chosen answers beside those of the rejected ones.

The reward is that of direct preference optimization (Rafailov et al. 2023, section 4): beta times how much likelier an
answer is than by the reference model.
"""

import numpy as np

from .base import OfflineMetric, pairs_of


class RewardAccuracy(OfflineMetric):
    """Predictions are the chosen answers' rewards, references the rejected ones'."""

    features = [pairs_of("float64")]

    def score(self, predictions, references):
        return np.greater(predictions, references).mean()


class RewardMargin(OfflineMetric):
    """Predictions are the chosen answers' rewards, references the rejected ones'."""

    features = [pairs_of("float64")]

    def score(self, predictions, references):
        return np.subtract(predictions, references).mean()
