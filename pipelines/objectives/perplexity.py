"""Metrics of summed losses: perplexities (of the model, of a unigram model, per word) and bits per pixel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.rows import Rows
from ..open_tokenizer import vocabulary_size
from ..plugins import METRICS
from .scores import OF_PART


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
    vocab_size: int

    def perplexity(self) -> float:
        return perplexity(self.nll / self.predictions)

    def unigram_perplexity(self) -> float:
        """Perplexity of the training text's token frequencies (add-one smoothing) on the labels of the rows.

        The text of each source counts once, whatever its weight in a mixture.
        """
        frequency, size = np.ones(self.vocab_size, dtype=np.int64), 1 << 24  # pieces keep a large store on disk
        for store in self.train.stores:
            for start in range(0, len(store.tokens), size):
                piece = np.asarray(store.tokens[start : start + size])
                frequency += np.bincount(piece, minlength=self.vocab_size)
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


def metrics_of_losses(
    tokenizer: Any, metrics: Sequence[str], result: Mapping[str, float], rows: Rows, train: Rows | None
) -> dict[str, float]:
    """Those of `metrics` that follow from losses, of all rows and of each part: {"perplexity": 9.5, "perplexity_a": 8}.

    result, train: as Scores.of_pass takes them.
    """
    train = train if getattr(train, "stores", ()) else None  # streams and examples have no token store
    losses = TokenLosses(result["nll"], result["predictions"], rows, train, vocabulary_size(tokenizer))
    of_losses = {name: METRICS[name] for name in metrics if METRICS[name].of_losses is not None}
    chosen = {name: row for name, row in of_losses.items() if train is not None or not row.needs_train}
    results = {name: row.of_losses(losses) for name, row in chosen.items()}
    for part in [name for name in result if name.startswith(OF_PART)]:
        of_part, suffix = replace(losses, nll=result[part], predictions=1.0), part.removeprefix(OF_PART)
        of_mean = {name: row for name, row in chosen.items() if not row.whole_text}
        results |= {part: result[part]}
        results |= {f"{name}_{suffix}": row.of_losses(of_part) for name, row in of_mean.items()}
    return results
