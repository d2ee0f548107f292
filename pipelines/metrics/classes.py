"""Metrics of class numbers, and of sets of classes (rows of 0 and 1, one for each class), by scikit-learn."""

import abc

from ..errors import UserError
from .offline_metric import OfflineMetric, pairs_of


class ClassMetric(OfflineMetric):
    features = [pairs_of("int64")]


class SetMetric(ClassMetric):
    """A metric that is of sets of classes, too."""

    features = [pairs_of("int64"), pairs_of("int64", several=True)]


def counter(predictions, references):
    """(classes, a function of weights (examples,) -> how often each class is rightly given, given, and true).

    Of classes, or of sets of them: rows of 0 and 1, one for each class.
    """
    import numpy as np

    both = np.stack([np.asarray(predictions), np.asarray(references)])
    if both.ndim > 2:
        sums = both.prod(0), *both
        return np.arange(both.shape[-1]), lambda weights: tuple(weights @ each for each in sums)
    classes, numbers = np.unique(both, return_inverse=True)
    given, true = numbers.reshape(both.shape)
    right, size = given == true, len(classes)

    def counts(weights) -> tuple:
        return tuple(
            np.bincount(numbers, weights=times, minlength=size)
            for numbers, times in ((given, weights * right), (given, weights), (true, weights))
        )

    return classes, counts


class Accuracy(SetMetric):
    def score(self, predictions, references):
        from sklearn.metrics import accuracy_score

        return accuracy_score(references, predictions)

    def weighted(self, predictions, references):
        right = self.right(predictions, references)
        return lambda weights: float(weights @ right / weights.sum())

    def right(self, predictions, references):
        import numpy as np

        same = np.asarray(predictions) == np.asarray(references)
        return same.reshape(len(same), -1).all(-1)


class MatthewsCorrelation(ClassMetric):
    def score(self, predictions, references):
        from sklearn.metrics import matthews_corrcoef

        return matthews_corrcoef(references, predictions)

    def weighted(self, predictions, references):
        """As Gorodkin 2004, eq. 8, for any number of classes."""
        _, counts = counter(predictions, references)

        def score(weights) -> float:
            right, given, true = counts(weights)
            size = weights.sum()
            spread = (size**2 - given @ given) * (size**2 - true @ true)
            return float((right.sum() * size - given @ true) / spread**0.5) if spread else 0.0

        return score


class AveragedMetric(SetMetric):
    """One number per class, averaged as `variant`, or the `average` given to `compute`, names.

    Without either it is the number of class 1 of two. It is 0 where it is a quotient by zero, such as the precision of
    a class that is never predicted.
    """

    function: str  # name in sklearn.metrics

    def score(self, predictions, references, average=None):
        import sklearn.metrics

        average = average or self.variant or "binary"
        others = sorted({*predictions, *references} - {0, 1}) if average == "binary" else []
        if others:
            raise UserError(
                f"metric {self._name!r} is of the classes 0 and 1, but class {others[0]} occurs; use {self._name}_macro"
            )
        function = getattr(sklearn.metrics, self.function)
        return function(references, predictions, average=average, zero_division=0)

    @staticmethod
    @abc.abstractmethod
    def quotient(right, given, true) -> tuple:
        """Numerator and denominator for each class, of how often it is rightly given, given, and true."""

    def weighted(self, predictions, references):
        import numpy as np

        classes, counts = counter(predictions, references)
        of_sets = np.ndim(references) > 1

        def score(weights) -> float:
            right, given, true = counts(weights)
            if self.variant == "micro":
                right, given, true = right.sum(), given.sum(), true.sum()
            above, below = self.quotient(right, given, true)
            each = above / np.where(below == 0, 1, below)
            if self.variant == "micro":
                return float(each)
            if self.variant == "macro":  # of sets scikit-learn counts every class, else those that occur
                return float(each[(given + true > 0) | of_sets].mean())
            share = true / max(true.sum(), 1) if self.variant == "weighted" else classes == 1
            return float(each @ share)

        return score


class F1(AveragedMetric):
    function = "f1_score"

    @staticmethod
    def quotient(right, given, true):
        return 2 * right, given + true


class Precision(AveragedMetric):
    function = "precision_score"

    @staticmethod
    def quotient(right, given, true):
        return right, given


class Recall(AveragedMetric):
    function = "recall_score"

    @staticmethod
    def quotient(right, given, true):
        return right, true
