"""Correlations of numbers, by scipy."""

import warnings

from .offline_metric import OfflineMetric, pairs_of


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
