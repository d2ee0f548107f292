"""Metrics of words' tags: a list of names for each sentence, predicted and true; of entities by seqeval."""

from .base import FEATURES, OfflineMetric


class TagMetric(OfflineMetric):
    features = [FEATURES["tags"]]


class TagAccuracy(TagMetric):
    def score(self, predictions, references):
        pairs = [pair for given, true in zip(predictions, references, strict=True) for pair in zip(given, true)]
        return sum(given == true for given, true in pairs) / len(pairs)


class Entities(TagMetric):
    """Micro average over entities, as conlleval counts them (Tjong Kim Sang and De Meulder 2003, section 2.4).

    A tag that goes on with an entity which nothing began begins one, as in conlleval; 0 where it is a quotient by zero.
    """

    def score(self, predictions, references):
        import seqeval.metrics

        self.signature = "seqeval, mode default (conlleval)"
        return getattr(seqeval.metrics, self.variant)(references, predictions, zero_division=0)
