"""Metrics of words' tags: a list of names for each sentence, predicted and true; of entities by seqeval."""

from .offline_metric import FEATURES, OfflineMetric


class TagMetric(OfflineMetric):
    features = [FEATURES["tags"]]


class TagAccuracy(TagMetric):
    def score(self, predictions, references):
        pairs = [pair for given, true in zip(predictions, references, strict=True) for pair in zip(given, true)]
        return sum(given == true for given, true in pairs) / len(pairs)

    def weighted(self, predictions, references):
        """From the numbers of words of each sentence: those with the right tag, and all."""
        import numpy as np

        sentences = [list(zip(given, true)) for given, true in zip(predictions, references, strict=True)]
        counts = np.array([(sum(given == true for given, true in words), len(words)) for words in sentences])

        def score(weights) -> float:
            right, words = weights @ counts
            return float(right / words) if words else float("nan")

        return score


class Entities(TagMetric):
    """Micro average over entities, as conlleval counts them (Tjong Kim Sang and De Meulder 2003, section 2.4).

    A tag that goes on with an entity which nothing began begins one, as in conlleval; 0 where it is a quotient by zero.
    """

    def score(self, predictions, references):
        import seqeval.metrics

        self.signature = "seqeval, mode default (conlleval)"
        return getattr(seqeval.metrics, self.variant)(references, predictions, zero_division=0)

    def weighted(self, predictions, references):
        """From the numbers of entities of each sentence: rightly found, found, and true; none is in two sentences."""
        import numpy as np
        from seqeval.metrics.sequence_labeling import get_entities

        found, true = ([set(get_entities(tags)) for tags in sentences] for sentences in (predictions, references))
        counts = np.array([(len(a & b), len(a), len(b)) for a, b in zip(found, true, strict=True)])

        def score(weights) -> float:
            right, given, there = (weights @ counts).tolist()
            above, below = {
                "f1_score": (2 * right, given + there),
                "precision_score": (right, given),
                "recall_score": (right, there),
            }[self.variant]
            return above / below if below else 0.0

        return score
