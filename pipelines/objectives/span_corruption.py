"""Spans of tokens left out of a row, a sentinel in place of each: span corruption, and what UL2's denoisers share.

Lengths and cuts are those of T5's code (Raffel et al. 2020, section 3.1.4; random_spans_noise_mask).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..lazy import np
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.tokenizer_section import SENTINELS, sentinel
from ..recipes.types import show
from .base import Objective, Planned
from .reconstruction import NEEDS, SEQ2SEQ, Corruption, LearnsToRestore, ReadsCorrupted
from .text import TextObjective, TextSettings
from .tokens import Tokens


def check_sentinels(objective: Objective, sentinels: Sequence[int], length: int, noises: Sequence[tuple]) -> None:
    """Raise UserError for fewer sentinels than a row of `length` tokens takes with one of the noises."""
    spans = max(noise_counts(length, *noise)[1] for noise in noises)
    if len(sentinels) < spans:
        raise UserError(
            f"objective.sequence_length={objective.settings.sequence_length} leaves out {spans} spans a row, but the "
            f"tokenizer has {len(sentinels)} sentinels ({sentinel(0)}, {sentinel(1)}, ...)"
        )


@dataclass
class SpanCorruptionSettings(TextSettings):
    fills_rows = False
    noise_density: float = doc("share of the tokens that is left out", 0.15, above=0, below=1)
    mean_span_length: float = doc("tokens per left-out span, on average", 3.0, at_least=1, at_most=2**20)

    @property
    def noise(self) -> tuple[float, float]:
        """As noise_counts takes it."""
        return self.noise_density, self.mean_span_length


class LeavesOutSpans(Corruption):
    """The kept tokens with a sentinel in place of each span; each sentinel followed by its span."""

    has_one_width = True

    def __init__(self, objective: Objective, tokenizer: Any):
        super().__init__(objective, tokenizer)
        self.sentinels = sentinel_ids(tokenizer)
        check_sentinels(objective, self.sentinels, self.row_length(self.settings), [self.settings.noise])

    @classmethod
    def row_length(cls, settings: SpanCorruptionSettings) -> int:
        return raw_length(settings.sequence_length, *settings.noise)

    def __call__(self, tokens, starts, generator) -> tuple:
        return leave_out_spans(tokens, *self.settings.noise, self.sentinels, generator)


@register_objective
class SpanCorruption(TextObjective):
    """Span corruption (Raffel et al. 2020, section 3.1.4), with the lengths of T5's code.

    Spans of tokens are left out of the encoder's input, a sentinel in place of each; the decoder writes them. Rows
    (reconstruction.py) have as many raw tokens as fill an input of sequence_length. Raises UserError for a tokenizer
    without eos or padding, or with too few sentinels, and for spans too short to have a kept token between them.
    """

    name = "span_corruption"
    auto_class, needs = SEQ2SEQ, NEEDS
    tokens = Tokens("eos", sentinels=SENTINELS)
    Settings = SpanCorruptionSettings
    Reads, Learns, Corruption = ReadsCorrupted, LearnsToRestore, LeavesOutSpans

    def check(self) -> None:
        super().check()
        density, span = self.settings.noise
        smallest = density / (1 - density)
        if span < smallest:
            raise UserError(
                f"objective.mean_span_length={show(span)} must be at least {smallest:.3g} with "
                f"objective.noise_density={show(density)}, so that a kept token stands between two spans"
            )

    def planned(self) -> Planned:
        return Planned(source_and_target_lengths(self.Corruption.row_length(self.settings), *self.settings.noise))


def noise_counts(length: int, noise_density: float, mean_span_length: float) -> tuple[int, int]:
    """(tokens left out, spans they form) of a row of `length` raw tokens, as T5's random_spans_noise_mask has them.

    Rounded half to even; at least one token and one span, and a kept token before each span. An infinite
    mean_span_length means one span.
    """
    noise = min(max(round(length * noise_density), 1), max(length - 1, 1))
    spans = max(round(noise / mean_span_length), 1)
    return noise, min(spans, noise, max(length - noise, 1))


def source_and_target_lengths(length: int, noise_density: float, mean_span_length: float) -> tuple[int, int]:
    """Tokens of the input and of the target, sentinels and eos included, of a row of `length` raw tokens."""
    noise, spans = noise_counts(length, noise_density, mean_span_length)
    return length - noise + spans + 1, noise + spans + 1


def raw_length(input_length: int, noise_density: float, mean_span_length: float, beside: int = 0) -> int:
    """The most raw tokens of a row whose input, with sentinels and eos, has at most `input_length` tokens.

    As T5's compute_input_and_target_lengths. Each further raw token makes the input longer by one or not at all, so the
    input is filled exactly, unless spans are so dense that one token more adds both a kept token and a span (a
    mean_span_length near noise_density / (1 - noise_density)). beside: further tokens of the input. Raises UserError
    for an input_length below 3 + beside.
    """

    def length_of_input(length: int) -> int:
        return source_and_target_lengths(length, noise_density, mean_span_length)[0] + beside

    length = 2
    if length_of_input(length) > input_length:
        raise UserError(
            f"objective.sequence_length={input_length} must be at least {3 + beside}, so that it holds "
            f"{'a mode token, ' * beside}a token, a sentinel and eos"
        )
    while length_of_input(length + 1) <= input_length:
        length += 1
    return length


def leave_out_spans(tokens, noise_density: float, mean_span_length: float, sentinels, generator) -> tuple:
    """(source, target), arrays of ids without eos, of one row of raw tokens (an array).

    Kept and left-out parts alternate, and the row ends with a span: a single span is the end of the row, as in prefix
    language modelling.
    """
    noise, spans = noise_counts(len(tokens), noise_density, mean_span_length)
    kept = random_segments(len(tokens) - noise, spans, generator)
    left_out = random_segments(noise, spans, generator)
    is_noise = np.repeat(np.tile([False, True], spans), np.stack([kept, left_out], axis=1).ravel())
    names = sentinels[:spans]
    source = np.insert(tokens[~is_noise], np.cumsum(kept), names)  # each sentinel after the kept tokens
    target = np.insert(tokens[is_noise], np.cumsum(left_out) - left_out, names)
    return source, target


def random_segments(items: int, segments: int, generator):
    """Lengths (an array) of `segments` parts, none empty, that `items` fall into; every way to cut equally likely."""
    if items < segments:  # a row of one token has nothing to keep
        return np.array([items])
    cuts = np.sort(generator.permutation(items - 1)[: segments - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)


def sentinel_ids(tokenizer):
    """Ids (an array) of <extra_id_0>, <extra_id_1>, ..., as many as the tokenizer has."""
    vocabulary, ids = tokenizer.get_vocab(), []
    while sentinel(len(ids)) in vocabulary:
        ids.append(vocabulary[sentinel(len(ids))])
    return np.array(ids, dtype=np.int64)
