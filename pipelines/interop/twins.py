"""Which lineage a native config belongs to, and which one a config of ours is a twin of."""

from dataclasses import dataclass
from typing import Any

from anyformer.modeling.configuration import AnyformerDecoderConfig
from transformers import PreTrainedConfig

from ..errors import UserError, did_you_mean
from ..source_fields import family_fields
from .bloom import BLOOM, MPT
from .gpt import GPT2, GPT_NEO, GPT_NEOX
from .lineage import TRAINING_FIELDS, Lineage
from .llama import LLAMA, MISTRAL, QWEN2, QWEN3
from .rotary import flat_rope

# Where several are twins of one config, the first is taken, unless the config remembers where it came from.
LINEAGES = {row.native: row for row in (LLAMA, MISTRAL, QWEN2, QWEN3, GPT2, GPT_NEO, GPT_NEOX, BLOOM, MPT)}
ORIGIN = "native_model_type"  # our config's memory: without a window, a Mistral is a LLaMA in all but name

# Functions that transformers has under several names.
SAME_ACTIVATION = {"gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh", "swish": "silu"}
# Field -> whether it acts in this config.
ACTS = {
    "alibi_bias_max": lambda c: c.position_encoding == "alibi",
    "relative_attention_num_buckets": lambda c: c.position_encoding == "relative",
    "relative_attention_max_distance": lambda c: c.position_encoding == "relative",
    "rope_parameters": lambda c: c.position_encoding == "rotary",
    "max_position_embeddings": lambda c: c.position_encoding in ("learned", "rotary"),
    "norm_bias": lambda c: c.norm_type == "layernorm",
}


def lineage_of(native: PreTrainedConfig) -> Lineage:
    """Return the lineage of a native config; raise UserError where there is none."""
    if native.model_type not in LINEAGES:
        hint = did_you_mean(native.model_type, LINEAGES)
        raise UserError(f"model_type={native.model_type!r} has no anyformer twin{hint}")
    return LINEAGES[native.model_type]


def our_config(native: PreTrainedConfig) -> AnyformerDecoderConfig:
    """Return the config of ours that computes what a native config computes.

    Raises UserError for an architecture, or a value of a field, that we cannot express.
    """
    lineage = lineage_of(native)
    try:
        return AnyformerDecoderConfig(**lineage.read(native), **{ORIGIN: lineage.native})
    except ValueError as error:
        raise UserError(f"{lineage.native} has no anyformer twin with these sizes: {error}") from error


def effective_fields(config) -> dict[str, Any]:
    """The fields of our config that decide what it computes, each said in one way."""
    fields = {name: getattr(config, name) for name in family_fields("decoder") if name not in TRAINING_FIELDS}
    fields = {name: value for name, value in fields.items() if name not in ACTS or ACTS[name](config)}
    del fields["layer_types"]
    fields["attention_pattern"] = config.attention_kinds
    fields["hidden_act"] = SAME_ACTIVATION.get(config.hidden_act, config.hidden_act)
    if fields["attention_multiplier"] is None:
        fields["attention_multiplier"] = config.head_dim**-0.5
    if "rope_parameters" in fields:
        fields["rope_parameters"] = flat_rope(config) or config.rope_parameters
    return fields


@dataclass(frozen=True)
class Fit:
    """How near a lineage comes to a config of ours: its native config, and the differences in words."""

    lineage: Lineage
    config: PreTrainedConfig | None
    differences: list[str]


def fit(lineage: Lineage, ours) -> Fit:
    """Translate our config there and back: what does not come back the same, the lineage cannot say."""
    try:
        native = lineage.native_config(ours)
        back = effective_fields(our_config(native))
    except (ValueError, KeyError, UserError) as error:  # what transformers' own validation refuses
        return Fit(lineage, None, [" ".join(str(error).split())])
    here = effective_fields(ours)
    names = [name for name in {**here, **back} if here.get(name) != back.get(name)]
    # A field that acts on one side only follows from another difference, such as that of position_encoding.
    names = [name for name in names if name in here and name in back] or names
    words = [f"{name} ({here.get(name)!r} here, {back.get(name)!r} there)" for name in names]
    return Fit(lineage, native, words)


def native_config(ours) -> tuple[Lineage, PreTrainedConfig]:
    """Return the native lineage and config that compute what our config computes.

    Raises UserError, naming the nearest lineage and what differs, where no native architecture does.
    """
    fits = [fit(lineage, ours) for lineage in LINEAGES.values()]
    twins = [row for row in fits if not row.differences]
    if not twins:
        # A lineage that transformers could not build was not compared in full: named only where nothing else is left.
        nearest = min(fits, key=lambda row: (row.config is None, len(row.differences)))
        raise UserError(
            f"this model has no native twin; the nearest, {nearest.lineage.native}, differs in "
            f"{', '.join(nearest.differences)}"
        )
    origin = [row for row in twins if row.lineage.native == getattr(ours, ORIGIN, None)]
    best = (origin or twins)[0]
    return best.lineage, best.config
