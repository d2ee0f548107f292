from dataclasses import dataclass

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.types import show
from .spans import SpansLeftOut, leave_out_spans, raw_length, source_and_target_lengths
from .text import TextSettings


@dataclass
class SpanCorruptionSettings(TextSettings):
    noise_density: float = doc("share of the tokens that is left out", 0.15, above=0, below=1)
    mean_span_length: float = doc("tokens per left-out span, on average", 3.0, at_least=1, at_most=2**20)


@register_objective
class SpanCorruption(SpansLeftOut):
    """Span corruption (Raffel et al. 2020, section 3.1.4), with the lengths of T5's code.

    Spans of tokens are left out of the encoder's input, a sentinel in place of each; the decoder writes them. Rows
    (reconstruction.py) are as long as it takes for the input to come to sequence_length tokens. Raises UserError for a
    tokenizer without eos, padding or with too few sentinels, and for spans too short to have a kept token between them.
    """

    name = "span_corruption"
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

    def batch_lengths(self) -> tuple[int, int]:
        """All batches have the lengths that full rows fill."""
        return self.row_lengths()

    def corrupt(self, tokens, starts, generator) -> tuple:
        """The kept tokens with a sentinel for each span left out; each sentinel with its span."""
        return leave_out_spans(tokens, *self.noise, self.sentinel_ids, generator)
