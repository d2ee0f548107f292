"""Bamba and dense Granite 4 hybrids: layers of Mamba-2 between layers of full attention."""

import math

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted, MustEqual, layer_kinds
from ..rotary import ROTARY_WITH_PART
from ..weights import Weights, fused, renamed
from .llama import FIELDS, GRANITE, MLP

KINDS = {"linear_attention": "mamba2_attention", "full_attention": "full_attention"}


def _write_expansion(ours) -> dict:
    """Channels of the values per hidden channel; 0 for a model without such layers, which has no such sizes."""
    return {"mamba_expand": (ours.linear_num_value_heads or 0) * (ours.linear_value_head_dim or 0) // ours.hidden_size}


MAMBA_FIELDS = {
    "mamba_n_heads": "linear_num_value_heads",
    "mamba_d_head": "linear_value_head_dim",
    "mamba_n_groups": "linear_num_key_heads",
    "mamba_d_state": "linear_key_head_dim",
    "mamba_d_conv": "linear_conv_kernel_dim",
    ("mamba_expand",): Computed(lambda native: {}, _write_expansion),
    "mamba_chunk_size": IRRELEVANT,
    "mamba_conv_bias": MustEqual(True),
    "mamba_proj_bias": MustEqual(False),
    "time_step_limit": MustEqual((0.0, math.inf)),
    "hidden_act": MustEqual("silu"),  # also in convolutions, where ours is always silu
}


def _read_layers(native) -> dict:
    return {"attention_pattern": [KINDS[name] for name in native.layers_block_type]}


def _full_layers(ours) -> list[int]:
    return [i for i, kind in enumerate(ours.attention_kinds) if kind == "full_attention"]


def _in_proj(config) -> tuple[int, list[int]]:
    """The layout of gate, x, B, C and time steps."""
    heads = config.linear_num_value_heads
    inner, keys = heads * config.linear_value_head_dim, config.linear_num_key_heads * config.linear_key_head_dim
    return 1, [inner, inner, keys, keys, heads]


MAMBA = {
    "layers.*.mamba.in_proj": fused(
        *(f"{letter}_proj" for letter in "gvkqa"), under="layers.*.self_attn", layout=_in_proj
    ),
    "layers.*.mamba.conv1d.weight": Weights(("layers.*.self_attn.conv_weight",), ones=(1,)),
    "layers.*.mamba.conv1d.bias": renamed("layers.*.self_attn.conv_bias"),
    "layers.*.mamba.out_proj": renamed("layers.*.self_attn.o_proj"),
    **{f"layers.*.mamba.{part}": renamed(f"layers.*.self_attn.{part}") for part in ("A_log", "dt_bias", "D", "norm")},
}
BAMBA = ArchitectureMap(
    native="bamba",
    fields={
        **FIELDS,
        **MAMBA_FIELDS,
        "rope_parameters": ROTARY_WITH_PART,
        ("attn_layer_indices",): Computed(_read_layers, lambda ours: {"attn_layer_indices": _full_layers(ours)}),
        ("num_logits_to_keep", "z_loss_coefficient"): IRRELEVANT,
    },
    weights={
        **{f"layers.*.feed_forward.{part}": renamed(f"layers.*.mlp.{part}") for part in MLP},
        **MAMBA,
        "layers.*.pre_ff_layernorm": renamed("layers.*.post_attention_layernorm"),
        "final_layernorm": renamed("norm"),
    },
)
GRANITE_HYBRID = ArchitectureMap(
    native="granitemoehybrid",
    fields={
        **GRANITE.fields,
        **MAMBA_FIELDS,
        "shared_intermediate_size": "intermediate_size",
        "num_local_experts": MustEqual(0),
        "position_embedding_type": Converted(
            "position_encoding",
            lambda kind: "rotary" if kind == "rope" else "none",
            lambda scheme: "rope" if scheme == "rotary" else None,
        ),
        **layer_kinds(KINDS),
        ("intermediate_size", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"): IRRELEVANT,
    },
    weights={
        **MAMBA,
        "layers.*.shared_mlp.input_linear": fused("gate_proj", "up_proj", under="layers.*.mlp"),
        "layers.*.shared_mlp.output_linear": renamed("layers.*.mlp.down_proj"),
    },
)
