"""Metrics of class numbers, and of sets of classes (rows of 0 and 1, one entry for each class), by scikit-learn."""

import numpy as np

from .offline_metric import OfflineMetric, pairs_of


class ClassMetric(OfflineMetric):
    """A metric that a function of sklearn.metrics computes, for classes or sets of classes."""

    features = [pairs_of("int64"), pairs_of("int64", several=True)]
    function: str  # its name in sklearn.metrics

    def score(self, predictions, references, **options):
        import sklearn.metrics

        return getattr(sklearn.metrics, self.function)(references, predictions, **options)

    def weighted(self, predictions, references):
        """Scores the distinct pairs of prediction and reference, which are few, weighted by how often each is drawn."""
        pairs, number = np.unique(np.stack([predictions, references], axis=1), axis=0, return_inverse=True)

        def score(weights) -> float:
            times = np.bincount(number.ravel(), weights=weights, minlength=len(pairs))
            drawn = times > 0
            return float(self.score(pairs[drawn, 0], pairs[drawn, 1], sample_weight=times[drawn]))

        return score


class Accuracy(ClassMetric):
    function = "accuracy_score"

    def right(self, predictions, references):
        same = np.asarray(predictions) == np.asarray(references)
        return same.reshape(len(same), -1).all(-1)


class MatthewsCorrelation(ClassMetric):
    features = [pairs_of("int64")]
    function = "matthews_corrcoef"


class AveragedMetric(ClassMetric):
    """F1, precision or recall of each class, averaged as `variant` says, or the `average` given to `compute`.

    Without either it is the number of class 1 of two classes. Where the denominator is zero it is 0, such as the
    precision of a class that is never predicted.
    """

    @property
    def function(self):
        return f"{self._name.partition('_')[0]}_score"

    def score(self, predictions, references, average=None, **options):
        average = average or self.variant or "binary"
        return super().score(predictions, references, average=average, zero_division=0, **options)
