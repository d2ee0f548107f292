from typing import NamedTuple

from ..lazy import np
from ..plugins import register_objective
from .span_corruption import SpansLeftOut, leave_out_spans, raw_length, source_and_target_lengths

# [R], [S] and [X] in the paper, but those could be words of a text, such as a film's rating.
REGULAR, SEQUENTIAL, EXTREME = "<|R|>", "<|S|>", "<|X|>"


class Denoiser(NamedTuple):
    """A denoiser of the mixture. mode: the token before what the encoder reads.

    noise: share of the tokens that is left out, mean tokens per span (infinite: one span, the row's end).
    """

    mode: str
    noise: tuple[float, float]


# Table 1 of the paper: two regular denoisers, the sequential one, four extreme ones.
DENOISERS = [
    *(Denoiser(REGULAR, (0.15, length)) for length in (3.0, 8.0)),
    Denoiser(SEQUENTIAL, (0.25, float("inf"))),
    *(Denoiser(EXTREME, noise) for noise in ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0))),
]


@register_objective
class MixtureOfDenoisers(SpansLeftOut):
    """UL2's mixture of denoisers (Tay et al. 2022, section 3.1): short spans, long or dense ones, and a prefix's rest.

    In each row one denoiser of the seven of table 1, drawn at random, leaves out spans as span corruption does, and its
    mode token stands before what the encoder reads: R leaves out short spans, X long ones or many, S the row's end (a
    prefix language model). Rows (reconstruction.py) are as long as all denoisers can take: none makes the encoder read,
    or the decoder write, more than sequence_length tokens. Raises UserError for a tokenizer without eos, padding or a
    mode token, or with too few sentinels.
    """

    name = "mixture_of_denoisers"

    def noises(self) -> list[tuple[float, float]]:
        return [part.noise for part in DENOISERS]

    def further_tokens(self) -> list[str]:
        return [REGULAR, SEQUENTIAL, EXTREME]

    def use_tokenizer(self, tokenizer) -> None:
        super().use_tokenizer(tokenizer)
        self.modes = dict(zip(self.further_tokens(), self.token_ids(self.further_tokens())))

    @property
    def row_length(self) -> int:
        most = self.settings.sequence_length
        length = min(raw_length(most, *noise, beside=1) for noise in self.noises())  # the mode token
        while length > 2 and max(source_and_target_lengths(length, *noise)[1] for noise in self.noises()) > most:
            length -= 1
        return length

    def corrupt(self, tokens, starts, generator) -> tuple:
        """(the mode token of a random denoiser, then the kept tokens with a sentinel for each span that is left out;
        each sentinel with its span)."""
        part = DENOISERS[int(generator.random() * len(DENOISERS))]
        source, target = leave_out_spans(tokens, *part.noise, self.sentinel_ids, generator)
        return np.insert(source, 0, self.modes[part.mode]), target
