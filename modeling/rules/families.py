"""The families and norms, as sentences and listings name them. Standard library only."""

from dataclasses import dataclass

from ..traits import DECODER, ENCODER, MOE, SEQ2SEQ, VIT


@dataclass(frozen=True)
class Family:
    """words: its name in sentences. bidirectional: whether tokens see later tokens."""

    words: str
    bidirectional: bool = False


@dataclass(frozen=True)
class Norm:
    """has_bias: whether `norm_bias` acts."""

    has_bias: bool


FAMILIES = {
    DECODER: Family("a decoder"),
    MOE: Family("a mixture-of-experts decoder"),
    ENCODER: Family("an encoder", bidirectional=True),
    SEQ2SEQ: Family("a sequence-to-sequence model"),
    VIT: Family("a vision transformer", bidirectional=True),
}
NORM_TYPES = {"layernorm": Norm(has_bias=True), "rmsnorm": Norm(has_bias=False)}
