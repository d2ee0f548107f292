"""Metrics of class numbers, and of sets of classes (rows of 0 and 1, one for each class), by scikit-learn."""

from ..errors import UserError
from .base import OfflineMetric, pairs_of


class ClassMetric(OfflineMetric):
    features = [pairs_of("int64")]


class SetMetric(ClassMetric):
    """A metric that is of sets of classes, too."""

    features = [pairs_of("int64"), pairs_of("int64", several=True)]


class Accuracy(SetMetric):
    def score(self, predictions, references):
        from sklearn.metrics import accuracy_score

        return accuracy_score(references, predictions)


class MatthewsCorrelation(ClassMetric):
    def score(self, predictions, references):
        from sklearn.metrics import matthews_corrcoef

        return matthews_corrcoef(references, predictions)


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


class F1(AveragedMetric):
    function = "f1_score"


class Precision(AveragedMetric):
    function = "precision_score"


class Recall(AveragedMetric):
    function = "recall_score"
