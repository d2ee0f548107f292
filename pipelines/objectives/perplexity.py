"""Metrics of summed losses: perplexities (of the model, of a unigram model, per word) and bits per pixel."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.rows import Rows
from ..open_tokenizer import vocabulary_size


def perplexity(nll_per_token: float) -> float:
    """exp of the mean negative log-likelihood; infinite where that overflows."""
    return math.exp(nll_per_token) if nll_per_token < 700 else math.inf


@dataclass
class TokenLosses:
    """What the metrics are computed from. nll: summed negative log-likelihood of the `predictions` tokens of `rows`."""

    nll: float
    predictions: float
    rows: Rows
    train: Rows | None
    tokenizer: Any

    def perplexity(self) -> float:
        return perplexity(self.nll / self.predictions)

    def unigram_perplexity(self) -> float:
        """Perplexity of the training text's token frequencies (add-one smoothing) on the labels of the rows.

        The text of each source counts once, whatever its weight in a mixture.
        """
        frequency, size = np.ones(vocabulary_size(self.tokenizer), dtype=np.int64), 1 << 24
        for store in self.train.stores:
            for start in range(0, len(store.tokens), size):  # pieces keep a large store on disk
                piece = np.asarray(store.tokens[start : start + size])
                frequency += np.bincount(piece, minlength=len(frequency))
        log_probability = np.log(frequency / frequency.sum())
        total = count = 0
        for i in range(len(self.rows)):
            labels = self.rows[i]["labels"].numpy()
            labels = labels[labels != -100]
            total -= log_probability[labels].sum()
            count += len(labels)
        return perplexity(total / max(1, count))

    def word_perplexity(self) -> float:
        """Perplexity per word, to compare models with different tokenizers. Words are separated by whitespace, and each
        end of a line counts as one (WikiText-2's convention)."""
        return perplexity(self.nll / sum(store.num_words for store in self.rows.stores))

    def bits_per_pixel(self) -> float:
        return self.nll / self.predictions / math.log(2)
