"""Metrics of answers in words, as SQuAD's official scripts define them; each answer has a list of right ones."""

import re
import string
from collections import Counter

import numpy as np

from .offline_metric import FEATURES, MeanMetric
from .unicode_words import ANY_PUNCTUATION, LETTER, NOT_LATIN

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = frozenset(string.punctuation)


def normalized(answer: str) -> str:
    """Lower case, no punctuation or articles, words separated by one space (Rajpurkar et al. 2016, section 6.1).

    Where a text has letters beside Latin ones, all punctuation of Unicode goes, and the letters of scripts without
    spaces are words (Lewis et al. 2020, MLQA).
    """
    lowered = "".join(sign for sign in answer.lower() if sign not in PUNCTUATION)
    if NOT_LATIN.search(lowered):
        lowered = LETTER.sub(r" \g<0> ", ANY_PUNCTUATION.sub("", lowered))
    return " ".join(ARTICLES.sub(" ", lowered).split())


def word_f1(given: str, true: str) -> float:
    """F1 of two answers as bags of words; where one of them has no word: 1 if neither has, else 0.

    That last rule is SQuAD 2.0's (Rajpurkar et al. 2018), where a question may have no answer. By the script of version
    1.1 two answers of nothing but articles and punctuation score 0.
    """
    words, right = normalized(given).split(), normalized(true).split()
    if not words or not right:
        return float(words == right)
    same = sum((Counter(words) & Counter(right)).values())
    return 2 * same / (len(words) + len(right))


class AnswerMetric(MeanMetric):
    """`references` holds a list of right answers for each prediction, the best match counts; empty: "" is right."""

    features = [FEATURES["answers"]]

    def each(self, predictions, references):
        pairs = zip(predictions, references, strict=True)
        return [max(self.of_pair(predicted, true) for true in right or [""]) for predicted, right in pairs]


class AnswerExactMatch(AnswerMetric):
    @staticmethod
    def of_pair(given: str, true: str) -> float:
        return float(normalized(given) == normalized(true))

    def right(self, predictions, references):
        return np.array(self.each(predictions, references), dtype=bool)


class AnswerF1(AnswerMetric):
    of_pair = staticmethod(word_f1)
