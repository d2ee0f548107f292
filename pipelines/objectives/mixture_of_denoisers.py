from dataclasses import dataclass

from ..errors import UserError
from ..lazy import np
from ..plugins import register_objective
from ..recipes.schema import doc
from .reconstruction import SourceTargetCollator
from .spans import SpansLeftOut, leave_out_spans, raw_length, source_and_target_lengths
from .text import TextSettings

# [R], [S] and [X] in the paper; these cannot be words of a text, such as a film's rating.
REGULAR, SEQUENTIAL, EXTREME = "<|R|>", "<|S|>", "<|X|>"


@dataclass
class Denoiser:
    """One of the parts of a mixture: how much of a row is left out, in spans of which length."""

    noise_density: float = doc("share of the tokens that is left out", 0.15, above=0, below=1)
    mean_span_length: float | None = doc(
        "tokens per left-out span, on average; null: one span, the row's end", 3.0, at_least=1, at_most=2**20
    )
    weight: float = doc("share of the rows it gets, relative to the other weights", 1.0, above=0)
    mode_token: str | None = doc("special token that begins what the encoder reads; null: none", REGULAR)

    @property
    def noise(self) -> tuple[float, float]:
        """(noise_density, mean_span_length) as spans.py takes them."""
        return self.noise_density, float("inf") if self.mean_span_length is None else self.mean_span_length


# Table 1 of the paper: two regular denoisers, the sequential one, four extreme ones, all equally likely.
PAPER = [
    *(Denoiser(0.15, length) for length in (3.0, 8.0)),
    Denoiser(0.25, None, mode_token=SEQUENTIAL),
    *(Denoiser(rate, n, mode_token=EXTREME) for rate, n in ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0))),
]


@dataclass
class MixtureOfDenoisersSettings(TextSettings):
    denoisers: list[Denoiser] = doc("the parts of the mixture; none: the seven of the paper's table 1", [])

    def __post_init__(self):
        super().__post_init__()
        self.denoisers = self.denoisers or list(PAPER)


@register_objective
class MixtureOfDenoisers(SpansLeftOut):
    """UL2's mixture of denoisers (Tay et al. 2022, section 3.1): short spans, long or dense ones, and a prefix's rest.

    In each row one denoiser, drawn by its weight, leaves out spans as span corruption does, and its mode token stands
    before what the encoder reads: R leaves out short spans, X long ones or many, S the row's end (a prefix language
    model). Rows (reconstruction.py) are as long as all denoisers can take: none makes the encoder read, or the decoder
    write, more than sequence_length tokens. Raises UserError for a tokenizer without eos, padding or a mode token, or
    with too few sentinels.
    """

    name = "mixture_of_denoisers"
    Settings = MixtureOfDenoisersSettings

    def check(self) -> None:
        super().check()
        for number, part in enumerate(self.settings.denoisers):
            if part.mode_token == "":
                raise UserError(f"objective.denoisers.{number}.mode_token='' is no token; null means none")
        if self.settings.sequence_length < 4:
            raise UserError(
                f"objective.sequence_length={self.settings.sequence_length} must be at least 4, so that it holds a "
                f"mode token, a token, a sentinel and eos"
            )

    def noises(self) -> dict[str, tuple[float, float]]:
        return {f"objective.denoisers.{number}": part.noise for number, part in enumerate(self.settings.denoisers)}

    def further_tokens(self) -> list[str]:
        return list(dict.fromkeys(part.mode_token for part in self.settings.denoisers if part.mode_token is not None))

    def use_tokenizer(self, tokenizer) -> None:
        super().use_tokenizer(tokenizer)
        self.modes = dict(zip(self.further_tokens(), self.token_ids(self.further_tokens())))

    @property
    def row_length(self) -> int:
        most, parts = self.settings.sequence_length, self.settings.denoisers
        length = min(raw_length(most - (part.mode_token is not None), *part.noise) for part in parts)
        while length > 2 and max(source_and_target_lengths(length, *part.noise)[1] for part in parts) > most:
            length -= 1
        return length

    @property
    def legend_words(self) -> str:
        from rich.markup import escape

        modes = "".join(f"[predicted]{escape(token)} [/]" for token in self.further_tokens())
        return (
            f"source: what the encoder reads, {modes}before it say which denoiser was drawn, "
            f"[predicted]<extra_id_N>[/] stands where a span was left out; target: each of them with its span; as in "
            f"the first epoch, others in each further one"
        )

    def collator(self, packed: bool) -> "MixtureOfDenoisersCollator":
        section = self.settings
        lengths = self.batch_lengths()
        return MixtureOfDenoisersCollator(
            self.tokenizer, self.sentinel_ids, section.denoisers, self.modes, self.seed, lengths
        )


class MixtureOfDenoisersCollator(SourceTargetCollator):
    """Inputs are the mode token of the denoiser drawn for a row, the kept tokens with a sentinel for each span left
    out, then eos; labels each sentinel with its span, then eos.

    modes: ids of the mode tokens by name.
    """

    def __init__(self, tokenizer, sentinels, denoisers: list[Denoiser], modes: dict, seed: int, lengths=(None, None)):
        super().__init__(tokenizer, seed, lengths)
        self.sentinels, self.denoisers, self.modes = sentinels, denoisers, modes
        weights = np.array([part.weight for part in denoisers])
        self.shares = weights / weights.sum()

    def corrupt(self, tokens, starts, generator) -> tuple:
        part = self.denoisers[generator.choice(len(self.denoisers), p=self.shares)]
        source, target = leave_out_spans(tokens, *part.noise, self.sentinels, generator)
        if part.mode_token is not None:
            source = np.insert(source, 0, self.modes[part.mode_token])
        return source, target
