"""Metrics of words' tags: a list of tags for each sentence, predicted and true; entities by seqeval."""

from .offline_metric import FEATURES, CountedMetric
from .tag_parts import BIOES, OUTSIDE, parts, spelled


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

    An I- tag that continues no entity begins one, as in conlleval; a tag that marks none is O, where seqeval makes an
    entity of it; 0 where the denominator is zero.
    """

    signature = "seqeval, mode default (conlleval)"

    def counts(self, predictions, references):
        """The number of right, predicted and true entities of each sentence; no entity spans two sentences."""
        from seqeval.metrics.sequence_labeling import get_entities

        predicted, true = (
            [set(get_entities(marking(s))) for s in sentences] for sentences in (predictions, references)
        )
        return [(len(a & b), len(a), len(b)) for a, b in zip(predicted, true, strict=True)]

    def of_sums(self, right, found, true):
        quotients = {"f1": (2 * right, found + true), "precision": (right, found), "recall": (right, true)}
        above, below = quotients[self.variant]
        return above / below if below else 0.0


def marking(tags: list[str]) -> list[str]:
    """The tags of a sentence as seqeval reads them: of bioes, and O for those that mark no entity, such as X."""
    return [spelled(tag, BIOES) if parts(tag)[1] else OUTSIDE for tag in tags]
