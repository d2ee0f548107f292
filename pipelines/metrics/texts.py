"""Metrics of texts against one or several references each, by sacrebleu."""

import abc

import datasets

from .base import OfflineMetric, pairs_of


class TextMetric(OfflineMetric):
    """`references` holds a text, or a list of texts, for each prediction."""

    features = [
        pairs_of("string"),
        datasets.Features(
            {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
        ),
    ]


class SacrebleuMetric(TextMetric):
    """The corpus score of one of sacrebleu's classes; `signature` then names its settings (Post 2018)."""

    @abc.abstractmethod
    def scorer(self):
        """The sacrebleu object that scores."""

    def score(self, predictions, references):
        lists = [[text] if isinstance(text, str) else text for text in references]
        most = max(map(len, lists))
        # sacrebleu takes the first references of all texts, then the second ones, ...; None where a text has fewer.
        streams = [[texts[i] if i < len(texts) else None for texts in lists] for i in range(most)]
        scorer = self.scorer()
        result = scorer.corpus_score(predictions, streams)
        self.signature = str(scorer.get_signature())
        return result.score


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


class Rouge(TextMetric):
    """ROUGE F1 (Lin 2004) without stemming, by rouge-score; of several references the best one counts."""

    def score(self, predictions, references):
        from rouge_score.rouge_scorer import RougeScorer

        scorer, found = RougeScorer([self.variant]), []
        for prediction, given in zip(predictions, references):
            texts = [given] if isinstance(given, str) else given
            found.append(max(scorer.score(text, prediction)[self.variant].fmeasure for text in texts))
        return sum(found) / len(found)


class ExactMatch(TextMetric):
    def score(self, predictions, references):
        hits = sum(p == r if isinstance(r, str) else p in r for p, r in zip(predictions, references))
        return hits / len(predictions)
