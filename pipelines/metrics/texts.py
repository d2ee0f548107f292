"""Metrics of texts by sacrebleu and rouge-score, against one or several references for each text."""

import abc

import numpy as np

from .offline_metric import FEATURES, MeanMetric, OfflineMetric
from .unicode_words import LETTER, Words


class TextMetric(OfflineMetric):
    """`references` holds a text, or a list of texts, for each prediction."""

    features = [FEATURES["texts"], FEATURES["answers"]]


class SacrebleuMetric(TextMetric):
    """The corpus score of one of sacrebleu's classes; after scoring, `signature` names its settings (Post 2018)."""

    @abc.abstractmethod
    def scorer(self):
        """The sacrebleu object that scores."""

    def score(self, predictions, references):
        scorer = self.scorer()
        result = scorer.corpus_score(predictions, streams_of(references))
        self.signature = str(scorer.get_signature())
        return result.score

    def weighted(self, predictions, references):
        """From the statistics of each text, which sacrebleu's own bootstrap sums, too (sacrebleu 2.4 to 2.6)."""
        scorer = self.scorer()
        counts = np.array(scorer._extract_corpus_statistics(predictions, streams_of(references)))
        return lambda weights: scorer._compute_score_from_stats((weights @ counts).tolist()).score


def streams_of(references: list) -> list[list[str | None]]:
    """References as sacrebleu takes them: a list of the first ones, then of the second; None where a text has fewer."""
    lists = [[text] if isinstance(text, str) else text for text in references]
    return [[texts[i] if i < len(texts) else None for texts in lists] for i in range(max(map(len, lists)))]


class Bleu(SacrebleuMetric):
    """BLEU (Papineni et al. 2002) with one of sacrebleu's tokenisations; equal ones make scores comparable."""

    def scorer(self):
        from sacrebleu.metrics import BLEU

        return BLEU(lowercase=self.variant == "lowercase", tokenize=self.tokenize)

    def remark(self, references):
        # More than two letters for each word by spaces: no single names in another text, no text cut into words before.
        unspaced = sum(len(LETTER.findall(text)) > 2 * len(text.split()) for text in map("".join, references))
        if not unspaced or self.tokenize not in ("13a", "intl", "none"):
            return None
        way_out = "set evaluation.bleu_tokenize: zh, ja-mecab, or char for any script"
        return f"{unspaced:,} of {len(references):,} references are of a script without spaces, not cut here; {way_out}"


class Chrf(SacrebleuMetric):
    """chrF2 (Popović 2015): character n-grams up to 6, recall counted twice."""

    def scorer(self):
        from sacrebleu.metrics import CHRF

        return CHRF()


class Rouge(MeanMetric, TextMetric):
    """ROUGE F1 (Lin 2004) of words in any script, without stemming; the best of several references counts."""

    def each(self, predictions, references):
        from rouge_score.rouge_scorer import RougeScorer

        scorer, best = RougeScorer([self.variant], tokenizer=Words()), []
        for prediction, reference in zip(predictions, references):
            texts = [reference] if isinstance(reference, str) else reference
            best.append(max(scorer.score(text, prediction)[self.variant].fmeasure for text in texts))
        return best


class ExactMatch(MeanMetric, TextMetric):
    def each(self, predictions, references):
        return [p == r if isinstance(r, str) else p in r for p, r in zip(predictions, references)]

    def right(self, predictions, references):
        return np.array(self.each(predictions, references))
