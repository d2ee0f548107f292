"""Spans of tokens left out of a row, a sentinel in place of each: span corruption, and the base of UL2's denoisers.

Lengths and cuts are those of T5's code (Raffel et al. 2020, section 3.1.4; random_spans_noise_mask).
"""

from abc import abstractmethod
from dataclasses import dataclass

from ..errors import UserError
from ..lazy import np
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.special_tokens import SENTINELS, sentinel
from ..recipes.types import show
from .reconstruction import Reconstruction
from .text import TextSettings


class SpansLeftOut(Reconstruction):
    """Base of objectives whose encoder reads a row with spans replaced by sentinels, and whose decoder writes them.

    Raises UserError for a tokenizer with too few sentinels.
    """

    sentinels = SENTINELS

    @abstractmethod
    def noises(self) -> list[tuple[float, float]]:
        """The pairs (noise_density, mean_span_length) that occur; each row gets one of them."""

    def use_tokenizer(self, tokenizer) -> None:
        super().use_tokenizer(tokenizer)
        self.sentinel_ids = sentinel_ids(self.tokenizer)
        spans = max(noise_counts(self.row_length, *noise)[1] for noise in self.noises())
        if len(self.sentinel_ids) < spans:
            raise UserError(
                f"objective.sequence_length={self.settings.sequence_length} leaves out {spans} spans a row, but the "
                f"tokenizer has {len(self.sentinel_ids)} sentinels ({sentinel(0)}, {sentinel(1)}, ...)"
            )


@dataclass
class SpanCorruptionSettings(TextSettings):
    noise_density: float = doc("share of the tokens that is left out", 0.15, above=0, below=1)
    mean_span_length: float = doc("tokens per left-out span, on average", 3.0, at_least=1, at_most=2**20)


@register_objective
class SpanCorruption(SpansLeftOut):
    """Span corruption (Raffel et al. 2020, section 3.1.4), with the lengths of T5's code.

    Spans of tokens are left out of the encoder's input, a sentinel in place of each; the decoder writes them. Rows
    (reconstruction.py) have as many raw tokens as fill an input of sequence_length. Raises UserError for a tokenizer
    without eos or padding, or with too few sentinels, and for spans too short to have a kept token between them.
    """

    name = "span_corruption"
    has_one_length = True
    Settings = SpanCorruptionSettings

    @property
    def noise(self) -> tuple[float, float]:
        return self.settings.noise_density, self.settings.mean_span_length

    def check(self) -> None:
        super().check()
        density, span = self.noise
        smallest = density / (1 - density)
        if span < smallest:
            raise UserError(
                f"objective.mean_span_length={show(span)} must be at least {smallest:.3g} with "
                f"objective.noise_density={show(density)}, so that a kept token stands between two spans"
            )

    def noises(self) -> list[tuple[float, float]]:
        return [self.noise]

    @property
    def row_length(self) -> int:
        return raw_length(self.settings.sequence_length, *self.noise)

    def row_lengths(self) -> tuple[int, int]:
        return source_and_target_lengths(self.row_length, *self.noise)

    def batch_widths(self) -> tuple[int, int]:
        return self.row_lengths()

    def corrupt(self, tokens, starts, generator) -> tuple:
        """(the kept tokens with a sentinel in place of each span, each sentinel followed by its span)."""
        return leave_out_spans(tokens, *self.noise, self.sentinel_ids, generator)


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
