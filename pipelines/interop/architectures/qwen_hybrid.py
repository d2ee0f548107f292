"""Qwen3.5 (texts) and Qwen3-Next: three layers of gated delta nets for each one of gated full attention."""

from ..architecture_map import ArchitectureMap, Computed, MustEqual, layer_kinds
from ..rotary import ROTARY_WITH_PART
from ..weights import Weights, fused, query_key_value, renamed
from .llama import FIELDS
from .mixtral import MIXTURE_FIELDS, SPARSE_LAYERS

HYBRID_FIXED = {"norm_type": "rmsnorm_zero_centered", "qk_norm": True, "attention_gate": "channel"}
MULTIMODAL = ("mrope_section", "mrope_interleaved")  # of positions in images; a text has the same position three times


def _read_rotation(native) -> dict:
    return {"rope_parameters": {key: value for key, value in native.rope_parameters.items() if key not in MULTIMODAL}}


HYBRID_FIELDS = {
    **FIELDS,
    "hidden_act": MustEqual("silu"),  # also in convolutions, where ours is always silu
    "rope_parameters": Computed(_read_rotation, ROTARY_WITH_PART.write),
    **layer_kinds({"linear_attention": "gated_delta_attention", "full_attention": "full_attention"}),
}


def _query_and_gate(config) -> tuple[int, list[int]]:
    return config.num_attention_heads, [config.head_dim] * 2


def _delta_sizes(config) -> tuple[int, int]:
    """(rows of a key head, rows of the value heads that it serves)."""
    repeats = config.linear_num_value_heads // config.linear_num_key_heads
    return config.linear_key_head_dim, repeats * config.linear_value_head_dim


def _side_by_side(config) -> tuple[int, list[int]]:
    keys, values = (config.linear_num_key_heads * size for size in _delta_sizes(config))
    return 1, [keys, keys, values]


def _by_key_head(config) -> tuple[int, list[int]]:
    key, values = _delta_sizes(config)
    return config.linear_num_key_heads, [key, key, values, values]


def _rates(config) -> tuple[int, list[int]]:
    return config.linear_num_key_heads, [config.linear_num_value_heads // config.linear_num_key_heads] * 2


DELTA = {
    "layers.*.linear_attn.conv1d.weight": Weights(("layers.*.self_attn.conv_weight",), ones=(1,)),
    **{f"layers.*.linear_attn.{part}": renamed(f"layers.*.self_attn.{part}") for part in ("A_log", "dt_bias", "norm")},
    "layers.*.linear_attn.out_proj": renamed("layers.*.self_attn.o_proj"),
    "layers.*.self_attn.q_proj": fused(
        "q_proj", "output_gate.gate_proj", under="layers.*.self_attn", layout=_query_and_gate
    ),
}

QWEN3_5 = ArchitectureMap(
    native="qwen3_5_text",
    fixed=HYBRID_FIXED,
    fields=HYBRID_FIELDS,
    weights=DELTA
    | {
        "layers.*.linear_attn.in_proj_qkv": query_key_value(layout=_side_by_side),
        "layers.*.linear_attn.in_proj_z": renamed("layers.*.self_attn.g_proj"),
        "layers.*.linear_attn.in_proj_a": renamed("layers.*.self_attn.a_proj"),
        "layers.*.linear_attn.in_proj_b": renamed("layers.*.self_attn.b_proj"),
    },
)

QWEN3_NEXT = ArchitectureMap(
    native="qwen3_next",
    family="moe",
    fixed={**HYBRID_FIXED, "shared_expert_gate": True},
    fields={
        **HYBRID_FIELDS,
        **MIXTURE_FIELDS,
        ("mlp_only_layers", "decoder_sparse_step"): SPARSE_LAYERS,
    },
    weights=DELTA
    | {
        "layers.*.linear_attn.in_proj_qkvz": fused(
            "q_proj", "k_proj", "v_proj", "g_proj", under="layers.*.self_attn", layout=_by_key_head
        ),
        "layers.*.linear_attn.in_proj_ba": fused("b_proj", "a_proj", under="layers.*.self_attn", layout=_rates),
    },
)
