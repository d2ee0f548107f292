"""Metrics of words' tags: a list of tags for each sentence, predicted and true; entities by seqeval."""

from .offline_metric import FEATURES, CountedMetric


class TagMetric(CountedMetric):
    features = [FEATURES["tags"]]


class TagAccuracy(TagMetric):
    def counts(self, predictions, references):
        """The number of rightly tagged words and of all words, for each sentence."""
        sentences = [list(zip(predicted, true)) for predicted, true in zip(predictions, references, strict=True)]
        return [(sum(predicted == true for predicted, true in pairs), len(pairs)) for pairs in sentences]

    def of_sums(self, right, words):
        return right / words if words else float("nan")


class Entities(TagMetric):
    """Micro average over entities, as conlleval counts them (Tjong Kim Sang and De Meulder 2003, section 2.4).

    An I- tag that continues no entity begins one, as in conlleval; 0 where the denominator is zero.
    """

    signature = "seqeval, mode default (conlleval)"

    def counts(self, predictions, references):
        """The number of right, predicted and true entities of each sentence; no entity spans two sentences."""
        from seqeval.metrics.sequence_labeling import get_entities

        predicted, true = ([set(get_entities(tags)) for tags in sentences] for sentences in (predictions, references))
        return [(len(a & b), len(a), len(b)) for a, b in zip(predicted, true, strict=True)]

    def of_sums(self, right, found, true):
        quotients = {"f1": (2 * right, found + true), "precision": (right, found), "recall": (right, true)}
        above, below = quotients[self.variant]
        return above / below if below else 0.0
