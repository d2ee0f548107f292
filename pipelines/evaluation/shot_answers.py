"""How a language model answers few-shot: a class or a number by the likelihood of words, a text by writing it.

A kind of answers has: `compares`, what its metrics compare; `words`, whose likelihoods are computed, if any;
written(answer), how a solved example states it; and answers(finished, prompts) -> (predictions, probabilities or None,
the number of prompts that were cut).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from ..errors import UserError
from ..likelihoods.likelihood import encode_pairs, log_likelihoods, most_tokens
from ..objectives.answering import continuations
from ..objectives.answers import FinishedModel
from ..objectives.data import Data
from ..objectives.label_values import are_unnamed

SCALE = 11  # evenly spaced numbers to average over, where the training labels have more than twice as many values


class Classes:
    """The class whose word is the likeliest continuation."""

    compares = "classes"

    def __init__(self, data: Data, given: Sequence[str] | None, labels: list[int]):
        self.words = label_words(data, given)
        self.tokenizer = data.tokenizer

    def written(self, answer: int) -> str:
        return self.words[answer]

    def answers(self, finished: FinishedModel, prompts: list[str]) -> tuple[list, Any, int]:
        scores, cut = class_scores(finished, self.tokenizer, prompts, self.words)
        return scores.argmax(-1).tolist(), softmax(scores, axis=-1), cut


class Numbers:
    """The mean of some numbers, weighted by the likelihood of each as the continuation (softmax over these numbers)."""

    compares = "numbers"

    def __init__(self, data: Data, given: Sequence[str] | None, labels: list[float]):
        if given is not None:
            try:
                self.scale = np.array(sorted(map(float, given)))
            except ValueError:
                raise UserError(f"--label-words {','.join(given)} must be numbers, such as 0,1,2,3,4,5") from None
        else:
            different = np.unique(labels)
            self.scale = different if len(different) <= 2 * SCALE else np.linspace(*different[[0, -1]], SCALE)
        self.words = [f"{number:.4g}" for number in self.scale]
        self.tokenizer = data.tokenizer

    def written(self, answer: float) -> str:
        return self.words[int(np.abs(self.scale - answer).argmin())]

    def answers(self, finished: FinishedModel, prompts: list[str]) -> tuple[list, Any, int]:
        scores, cut = class_scores(finished, self.tokenizer, prompts, self.words)
        return (softmax(scores, axis=-1) @ self.scale).tolist(), None, cut


class Texts:
    """The first line that the model writes, greedily."""

    compares, words = "texts", ()

    def __init__(self, data: Data, given: Sequence[str] | None, labels: list[str]):
        if given is not None:
            raise UserError(f"--label-words are of classes and numbers; {data.objective.setting} has written answers")
        self.tokenizer = data.tokenizer
        self.tokens = data.objective.recipe.evaluation.sample_tokens

    def written(self, answer: str) -> str:
        return " ".join(answer.split())

    def answers(self, finished: FinishedModel, prompts: list[str]) -> tuple[list, Any, int]:
        config = finished.model.config
        most = most_tokens(config) - self.tokens
        if config.is_encoder_decoder or most < 1:
            raise UserError(f"--shots asks a decoder with room for evaluation.sample_tokens={self.tokens}; lower that")
        ids = [context for context, _ in encode_pairs(self.tokenizer, [(prompt, " a") for prompt in prompts])]
        texts = continuations(finished, self.tokenizer, [row[-most:] for row in ids], self.tokens)
        return [first_line(text) for text in texts], None, sum(len(row) > most for row in ids)


def first_line(text: str) -> str:
    """The first line of a text that is not blank."""
    return " ".join(text.strip().partition("\n")[0].split())


KINDS: dict[str, Callable] = {kind.compares: kind for kind in (Classes, Numbers, Texts)}


def label_words(data: Data, given: Sequence[str] | None) -> list[str]:
    """The words of the classes; raises UserError unless there is one for each class, all different and none empty."""
    names = data.labels.names
    if given is None and are_unnamed(names):
        raise UserError(f"--shots asks for words, and the classes have no names but {names[0]}, ...; add --label-words")
    words = [word.strip() for word in (names if given is None else given)]
    if len(words) != len(names):
        raise UserError(f"--label-words has {len(words)}, but there are {len(names)} classes: {', '.join(names)}")
    if len(set(words)) < len(words) or "" in words:
        raise UserError(f"--label-words {','.join(words)} must be different words, one for each class")
    return words


def class_scores(finished: FinishedModel, tokenizer, prompts: list[str], words: list[str]):
    """(log-likelihoods of the words, (questions, classes); the number of prompts that were cut)."""
    answers, most = bool(finished.model.config.is_encoder_decoder), most_tokens(finished.model.config)
    pairs = encode_pairs(tokenizer, [(prompt, f" {word}") for prompt in prompts for word in words], answers)
    longest = [len(context) if answers else len(context) + len(word) - 1 for context, word in pairs]
    cut = sum(max(longest[i : i + len(words)]) > most for i in range(0, len(pairs), len(words)))
    scores = np.array(log_likelihoods(finished.model, pairs, batch_size=finished.batch_size, most=most))
    return scores.reshape(len(prompts), len(words)), cut
