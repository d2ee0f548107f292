from typing import Any

from ..lazy import np
from ..plugins import register_objective
from ..recipes.tokenizer_section import SENTINELS
from .base import Objective
from .reconstruction import NEEDS, SEQ2SEQ, Corruption, LearnsToRestore, ReadsCorrupted
from .span_corruption import check_sentinels, leave_out_spans, raw_length, sentinel_ids, source_and_target_lengths
from .text import TextObjective, TextSettings
from .tokens import Tokens, token_ids

# [R], [S] and [X] in the paper, but those could be words of a text, such as a film's rating.
REGULAR, SEQUENTIAL, EXTREME = "<|R|>", "<|S|>", "<|X|>"
MODES = [REGULAR, SEQUENTIAL, EXTREME]
# Table 1 of the paper: the token before what the encoder reads; the share of the tokens that is left out and the mean
# tokens per span (infinite: one span, the row's end).
DENOISERS = [
    *((REGULAR, (0.15, length)) for length in (3.0, 8.0)),
    (SEQUENTIAL, (0.25, float("inf"))),
    *((EXTREME, noise) for noise in ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0))),
]
NOISES = [noise for _, noise in DENOISERS]


class Denoises(Corruption):
    """(the mode token of a random denoiser, then the kept tokens with a sentinel for each span that is left out; each
    sentinel with its span)."""

    def __init__(self, objective: Objective, tokenizer: Any):
        super().__init__(objective, tokenizer)
        self.sentinels = sentinel_ids(tokenizer)
        check_sentinels(objective, self.sentinels, self.row_length(self.settings), NOISES)
        self.modes = dict(zip(MODES, token_ids(objective, tokenizer, MODES)))

    @classmethod
    def row_length(cls, settings: TextSettings) -> int:
        most = settings.sequence_length
        length = min(raw_length(most, *noise, beside=1) for noise in NOISES)  # the mode token
        while length > 2 and max(source_and_target_lengths(length, *noise)[1] for noise in NOISES) > most:
            length -= 1
        return length

    def __call__(self, tokens, starts, generator) -> tuple:
        mode, noise = DENOISERS[int(generator.random() * len(DENOISERS))]
        source, target = leave_out_spans(tokens, *noise, self.sentinels, generator)
        return np.insert(source, 0, self.modes[mode]), target


@register_objective
class MixtureOfDenoisers(TextObjective):
    """UL2's mixture of denoisers (Tay et al. 2022, section 3.1): short spans, long or dense ones, and a prefix's rest.

    In each row one denoiser of the seven of table 1, drawn at random, leaves out spans as span corruption does, and its
    mode token stands before what the encoder reads: R leaves out short spans, X long ones or many, S the row's end (a
    prefix language model). Rows (reconstruction.py) are as long as all denoisers can take: none makes the encoder read,
    or the decoder write, more than sequence_length tokens. Raises UserError for a tokenizer without eos, padding or a
    mode token, or with too few sentinels.
    """

    name = "mixture_of_denoisers"
    auto_class, needs = SEQ2SEQ, NEEDS
    tokens = Tokens("eos", sentinels=SENTINELS, further=lambda objective: MODES)
    Reads, Learns, Corruption = ReadsCorrupted, LearnsToRestore, Denoises
