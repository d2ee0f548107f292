"""How well a model tells preferred answers: rewards of chosen answers beside those of the rejected ones.

The reward is that of direct preference optimization (Rafailov et al. 2023, section 4): beta times how much likelier an
answer is than by the reference model.
"""

import numpy as np

from .offline_metric import MeanMetric, pairs_of


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
