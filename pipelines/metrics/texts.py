"""Metrics of texts against one or several references each, by sacrebleu."""

import abc

import numpy as np

from .offline_metric import FEATURES, MeanMetric, OfflineMetric


class TextMetric(OfflineMetric):
    """`references` holds a text, or a list of texts, for each prediction."""

    features = [FEATURES["texts"], FEATURES["answers"]]


class SacrebleuMetric(TextMetric):
    """The corpus score of one of sacrebleu's classes; `signature` then names its settings (Post 2018)."""

    @abc.abstractmethod
    def scorer(self):
        """The sacrebleu object that scores."""

    def score(self, predictions, references):
        scorer = self.scorer()
        result = scorer.corpus_score(predictions, streams_of(references))
        self.signature = str(scorer.get_signature())
        return result.score

    def weighted(self, predictions, references):
        """From the counts of each text, which sacrebleu's own bootstrap adds up as well (sacrebleu 2.4 to 2.6)."""
        scorer = self.scorer()
        counts = np.array(scorer._extract_corpus_statistics(predictions, streams_of(references)))
        return lambda weights: scorer._compute_score_from_stats((weights @ counts).tolist()).score


def streams_of(references: list) -> list[list[str | None]]:
    """References as sacrebleu takes them: the first of all texts, then the second ones; None where a text has fewer."""
    lists = [[text] if isinstance(text, str) else text for text in references]
    return [[texts[i] if i < len(texts) else None for texts in lists] for i in range(max(map(len, lists)))]


class Bleu(SacrebleuMetric):
    """BLEU (Papineni et al. 2002) with sacrebleu's own tokenisation 13a, so that numbers can be compared."""

    def scorer(self):
        from sacrebleu.metrics import BLEU

        return BLEU(lowercase=self.variant == "lowercase")


class Chrf(SacrebleuMetric):
    """chrF2 (Popović 2015): character n-grams up to 6, recall counted twice."""

    def scorer(self):
        from sacrebleu.metrics import CHRF

        return CHRF()


class Rouge(MeanMetric, TextMetric):
    """ROUGE F1 (Lin 2004) without stemming, by rouge-score; of several references the best one counts."""

    def each(self, predictions, references):
        from rouge_score.rouge_scorer import RougeScorer

        scorer, found = RougeScorer([self.variant]), []
        for prediction, given in zip(predictions, references):
            texts = [given] if isinstance(given, str) else given
            found.append(max(scorer.score(text, prediction)[self.variant].fmeasure for text in texts))
        return found


class ExactMatch(MeanMetric, TextMetric):
    def each(self, predictions, references):
        return [p == r if isinstance(r, str) else p in r for p, r in zip(predictions, references)]

    def right(self, predictions, references):
        return np.array(self.each(predictions, references))
