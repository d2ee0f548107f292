"""Metrics of words' tags: a list of names for each sentence, predicted and true; of entities by seqeval."""

from .offline_metric import FEATURES, CountedMetric


class TagMetric(CountedMetric):
    features = [FEATURES["tags"]]


class TagAccuracy(TagMetric):
    def counts(self, predictions, references):
        """The words of each sentence that have the right tag, and all."""
        sentences = [list(zip(given, true)) for given, true in zip(predictions, references, strict=True)]
        return [(sum(given == true for given, true in words), len(words)) for words in sentences]

    def of_sums(self, right, words):
        return right / words if words else float("nan")


class Entities(TagMetric):
    """Micro average over entities, as conlleval counts them (Tjong Kim Sang and De Meulder 2003, section 2.4).

    A tag that goes on with an entity which nothing began begins one, as in conlleval; 0 where it is a quotient by zero.
    """

    signature = "seqeval, mode default (conlleval)"

    def counts(self, predictions, references):
        """The entities of each sentence: rightly found, found, and true; none is in two sentences."""
        from seqeval.metrics.sequence_labeling import get_entities

        found, true = ([set(get_entities(tags)) for tags in sentences] for sentences in (predictions, references))
        return [(len(a & b), len(a), len(b)) for a, b in zip(found, true, strict=True)]

    def of_sums(self, right, found, true):
        quotients = {"f1": (2 * right, found + true), "precision": (right, found), "recall": (right, true)}
        above, below = quotients[self.variant]
        return above / below if below else 0.0
