"""Architecture maps by model_type: the one of a native config, and the closest one to a config of ours."""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from anyformer.modeling.configuration import TransformerConfig
from anyformer.modeling.traits import POSITION_SCHEMES
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PreTrainedConfig

from ..errors import UserError, did_you_mean
from ..recipes.introspection import family_fields, family_row
from .architecture_map import SILENT_FIELDS, ArchitectureMap
from .families import family_name
from .rotary import flat_rope

# Files of maps. Where several maps match a config, the first is taken, unless the config records where it comes from.
FILES = ("llama", "gpt", "bloom", "imagegpt", "gemma", "olmo", "falcon", "cohere", "qwen_hybrid", "bamba")
FILES += ("bert", "albert", "deberta", "modernbert", "t5", "bart", "switch")
FILES += ("mixtral", "gpt_oss", "deepseek", "llama4", "kimi", "vit")
_FOUND = [row for name in FILES for row in vars(import_module(f".architectures.{name}", __package__)).values()]
ARCHITECTURES = {row.native: row for row in _FOUND if isinstance(row, ArchitectureMap)}
# A field of our config that records the source model_type: some architectures coincide, as Mistral without a window
# and LLaMA.
ORIGIN = "native_model_type"

# Activation functions that transformers has under several names.
SAME_ACTIVATION = {"gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh", "swish": "silu"}
SAME_ACTIVATION |= {"gelu_python": "gelu"}


ABSOLUTE = ("max_position_embeddings", "position_offset")  # of tables of absolute positions


def _adds_absolute_positions(c) -> bool:
    """Whether there is a table of learned absolute positions beside disentangled ones."""
    return getattr(c, "position_biased_input", False) or getattr(c, "mask_decoder_layers", 0) > 0


def _positions_read(field: str):
    """config -> whether its position scheme, or a table of absolute positions beside it, reads this field."""
    return lambda c: (
        field in POSITION_SCHEMES[c.position_encoding].fields or (field in ABSOLUTE and _adds_absolute_positions(c))
    )


def feed_forward_kinds(c) -> list[str]:
    """The kind of feed-forward of each layer; two stacks share one pattern."""
    layers = max(c.num_hidden_layers, getattr(c, "num_decoder_layers", None) or 0)
    if getattr(c, "num_experts", None) is None:
        return ["dense"] * layers
    kinds = c.mlp_pattern or c.mlp_kinds
    return [kinds[i % len(kinds)] for i in range(layers)]


MIXTURE_FIELDS = ("num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "routed_scaling_factor")
MIXTURE_FIELDS += ("router_bias", "apply_router_weight_on_input", "router_scoring", "router_bias_update_rate")
MIXTURE_FIELDS += ("shared_expert_intermediate_size", "expert_capacity", "n_group", "topk_group")
# Field -> whether it has an effect with this config.
ACTS = {
    **{field: _positions_read(field) for scheme in POSITION_SCHEMES.values() for field in scheme.fields},
    "norm_bias": lambda c: c.norm_type == "layernorm",
    **dict.fromkeys(("swiglu_limit", "swiglu_alpha"), lambda c: c.mlp_type == "clamped_glu"),
    **dict.fromkeys(("floor_scale", "attn_scale"), lambda c: c.attn_temperature_tuning),
    **dict.fromkeys(("conv_groups", "conv_act"), lambda c: c.conv_kernel_size > 0),
    # In transformers these follow from the class or its arguments, not from the config.
    "add_pooling_layer": lambda c: family_name(c) != "vit",
    "distillation_head": lambda c: False,
    "pooler_act": lambda c: not getattr(c, "task_head_transform", False),
    "intermediate_size": lambda c: "dense" in feed_forward_kinds(c),
    **dict.fromkeys(MIXTURE_FIELDS, lambda c: c.num_experts is not None),
    "shared_expert_gate": lambda c: bool(c.num_experts and c.shared_expert_intermediate_size),
}


def architecture_of(native: PreTrainedConfig) -> ArchitectureMap:
    """Return the architecture of a native config; raise UserError if there is none."""
    if native.model_type not in ARCHITECTURES:
        hint = did_you_mean(native.model_type, ARCHITECTURES)
        raise UserError(f"model_type={native.model_type!r} has no anyformer twin{hint}")
    return ARCHITECTURES[native.model_type]


def our_config(native: PreTrainedConfig) -> TransformerConfig:
    """Return the config of ours that computes what a native config computes.

    Raises UserError for an architecture, or a value of a field, that we cannot express.
    """
    architecture = architecture_of(native)
    try:
        row = family_row(architecture.family)
        return row.load(row.config)(**architecture.read(native), **{ORIGIN: architecture.native})
    except (ValueError, StrictDataclassError) as error:
        raise UserError(f"{architecture.native} has no anyformer twin with these sizes: {error}") from error


def effective_fields(config) -> dict[str, Any]:
    """The fields of our config that have an effect on its outputs, each in a canonical form."""
    fields = {name: getattr(config, name) for name in family_fields(family_name(config)) if name not in SILENT_FIELDS}
    fields = {name: value for name, value in fields.items() if name not in ACTS or ACTS[name](config)}
    del fields["layer_types"]
    fields["attention_pattern"] = config.attention_kinds
    if "num_experts" in fields:
        del fields["mlp_layer_types"]
        fields["mlp_pattern"] = feed_forward_kinds(config)
        if fields.get("router_bias_update_rate"):  # its size only matters in training
            fields["router_bias_update_rate"] = "above 0"
    fields["hidden_act"] = SAME_ACTIVATION.get(config.hidden_act, config.hidden_act)
    if "head_act" in fields:
        head_act = config.head_act or config.hidden_act
        fields["head_act"] = SAME_ACTIVATION.get(head_act, head_act)
    if fields["attention_multiplier"] is None:
        fields["attention_multiplier"] = config.head_dim**-0.5
    if "rope_parameters" in fields:
        fields["rope_parameters"] = flat_rope(config) or config.rope_parameters
    if "pos_att_type" in fields:
        fields["pos_att_type"] = sorted(config.pos_att_type)
        fields["max_relative_positions"] = config.max_relative_positions or config.max_position_embeddings
    return fields


def same_value(one: Any, other: Any) -> bool:
    """Whether two fields are equal, up to the rounding of a square root computed in two ways."""
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


@dataclass(frozen=True)
class Match:
    """How close an architecture is to a config of ours.

    config: the native config; None if transformers accepts none. differences: in words; empty for a twin.
    """

    architecture: ArchitectureMap
    config: PreTrainedConfig | None
    differences: list[str]


def compare(architecture: ArchitectureMap, ours) -> Match:
    """Translate our config there and back: a field that comes back with another value is a difference."""
    try:
        native = CONFIG_MAPPING[architecture.native](**architecture.write(ours))
        back = effective_fields(our_config(native))
    except (
        ValueError,
        KeyError,
        ArithmeticError,
        StrictDataclassError,
        UserError,
    ) as error:  # transformers' among them
        return Match(architecture, None, [" ".join(str(error).split())])
    here = effective_fields(ours)
    names = [name for name in {**here, **back} if not same_value(here.get(name), back.get(name))]
    if architecture.tied_by_weights:
        names = [name for name in names if name != "tie_word_embeddings"]
    # A field that acts on one side only follows from another difference, such as that of position_encoding.
    names = [name for name in names if name in here and name in back] or names
    words = [f"{name} ({here.get(name)!r} here, {back.get(name)!r} there)" for name in names]
    return Match(architecture, native, words)


def closest_match(ours) -> Match:
    """Return the architecture that computes what our config computes, or the one with the fewest differences.

    If several have no difference: the one that the config comes from, else the first of ARCHITECTURES.
    """
    family = family_name(ours)
    matches = [compare(architecture, ours) for architecture in ARCHITECTURES.values() if architecture.family == family]

    def distance(match: Match) -> tuple:
        # Without a native config not all fields were compared: such a match comes last.
        from_elsewhere = match.architecture.native != getattr(ours, ORIGIN, None)
        return match.config is None, len(match.differences), not match.differences and from_elsewhere

    return min(matches, key=distance)


def native_config(ours) -> tuple[ArchitectureMap, PreTrainedConfig]:
    """Return the native architecture and config that compute what our config computes.

    Raises UserError, naming the nearest architecture and what differs, if there is none.
    """
    match = closest_match(ours)
    if match.differences:
        raise UserError(
            f"this model has no native twin; the nearest, {match.architecture.native}, differs in "
            f"{', '.join(match.differences)}"
        )
    return match.architecture, match.config
