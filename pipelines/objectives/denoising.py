from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..lazy import np
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.tokenizer_section import MASK
from .base import SHARE, Objective
from .reconstruction import NEEDS, SEQ2SEQ, Corruption, LearnsToRestore, ReadsCorrupted
from .text import TextObjective, TextSettings
from .tokens import Tokens, need_tokens


@dataclass
class DenoisingSettings(TextSettings):
    fills_rows = False
    infill_rate: float = doc(
        "text infilling: share of the tokens left out in spans, a mask token in place of each", 0.3, at_least=0, below=1
    )
    mean_span_length: float = doc(
        "tokens per span of the infilling, Poisson-distributed: one of none inserts a mask token",
        3.0,
        at_least=1,
        at_most=2**20,
    )
    permute_rate: float = doc("sentence permutation: share of the sentences that change places", 1.0, **SHARE)


class AddsNoise(Corruption):
    """(the row with noise, which never makes it longer; the row as it was).

    Of a row's n tokens, not counting those that begin and end documents, round(infill_rate * n) are left out: the same
    share of each document, but for rounding.
    """

    def __init__(self, objective: Objective, tokenizer: Any):
        from ..tokenizers.word_marks import WordMarks

        super().__init__(objective, tokenizer)
        need_tokens(objective, tokenizer, mask="a mask")
        self.frame = [tokenizer.bos_token_id, tokenizer.eos_token_id]
        self.marks = WordMarks(tokenizer) if self.settings.permute_rate else None

    @classmethod
    def row_length(cls, settings: DenoisingSettings) -> int:
        """One less than sequence_length, for the eos that ends a target."""
        return settings.sequence_length - 1

    def __call__(self, tokens, starts, generator) -> tuple:
        section = self.settings
        parts = [self._unframed(part) for part in np.split(tokens, starts[1:])]
        pieces = []
        numbers = counts([len(content) for _, content, _ in parts], section.infill_rate)
        for (begin, content, end), infilled in zip(parts, numbers):
            if self.marks is not None:
                content = permuted(content, self.marks.sentence_starts(content), section.permute_rate, generator)
            pieces += [begin, self._infilled(content, infilled, generator), end]
        return np.concatenate(pieces), tokens

    def _unframed(self, part) -> tuple:
        """The tokens that begin a document's part, its content, and those that end it."""
        first = int(part[0] in self.frame)
        last = max(first, len(part) - int(part[-1] in self.frame))
        return part[:first], part[first:last], part[last:]

    def _infilled(self, content, number: int, generator):
        """The content with random spans, `number` tokens in all, each replaced by one mask token."""
        spans = span_lengths(number, self.settings.mean_span_length, generator)
        gaps = np.sort(generator.integers(len(content) - number + 1, size=len(spans)))  # before which kept token
        left_out = np.zeros(len(content), dtype=bool)
        left_out[np.repeat(gaps, spans) + np.arange(number)] = True
        return np.insert(content[~left_out], gaps, self.tokenizer.mask_token_id)


@register_objective
class Denoising(TextObjective):
    """Denoising (BART, Lewis et al. 2020, section 2.2): the whole text from one with spans hidden and sentences moved.

    The encoder reads a row with noise, the decoder writes the whole row as it was. Both kinds of noise have a rate,
    which may be 0; the defaults are the paper's final mixture. First sentences are permuted, then spans are infilled.
    Sentence beginnings are read off the tokens (tokenizers/word_marks.py). Noise stays within a document: no sentence
    moves to another one, no span crosses into one, and end-of-text tokens stay in place; where the row's end cuts a
    document, each part is treated as a document. Attention is over the whole row (reconstruction.py).
    Raises UserError for a tokenizer without mask token, eos or padding.
    """

    name = "denoising"
    auto_class, needs = SEQ2SEQ, NEEDS
    tokens = Tokens("eos", further=lambda objective: [MASK])
    Settings = DenoisingSettings
    Reads, Learns, Corruption = ReadsCorrupted, LearnsToRestore, AddsNoise

    def check(self) -> None:
        super().check()
        if not self.settings.infill_rate and not self.settings.permute_rate:
            raise UserError(
                "objective.name=denoising with both rates 0 copies its text; set one, such as objective.infill_rate=0.3"
            )


def counts(lengths: list[int], rate: float):
    """lengths * rate as whole numbers, rounded so that their sum is the rounded sum(lengths) * rate."""
    ends = np.floor(np.cumsum([0, *lengths]) * rate + 0.5).astype(np.int64)
    return np.diff(ends)


def span_lengths(total: int, mean: float, generator):
    """Lengths (an array) of spans drawn from Poisson(mean) until their sum is `total`; the last one is cut.

    There are at most `total` spans, so that a mask for each makes the text no longer: empty spans beyond that number
    are dropped, which with a mean of 3 happens in very short texts only.
    """
    lengths, left = [], total
    while left > 0:
        lengths.append(min(int(generator.poisson(mean)), left))
        left -= lengths[-1]
    lengths = np.array(lengths, dtype=np.int64)
    empty = np.flatnonzero(lengths == 0)
    over = max(0, len(lengths) - total)
    return np.delete(lengths, empty[len(empty) - over :])


def permuted(content, starts, rate: float, generator):
    """The content with round(rate * number of sentences) of its sentences permuted."""
    sentences = np.split(content, starts)
    number = round(rate * len(sentences))
    if number < 2:
        return content
    order = np.arange(len(sentences))
    chosen = generator.permutation(len(sentences))[:number]
    order[np.sort(chosen)] = chosen
    return np.concatenate([sentences[place] for place in order])
