"""Kimi Linear: delta attention, in every fourth layer latent attention without positions; DeepSeek-V3's experts."""

from ..architecture_map import ArchitectureMap, Computed, MustEqual, layer_kinds
from ..weights import Weights, renamed
from .deepseek import DEEPSEEK_V3

KINDS = {"linear_attention": "kimi_delta_attention", "full_attention": "latent_attention"}
GATES = ("f_a_proj", "f_b_proj", "dt_bias")
KIMI_DELTA = {
    **{f"layers.*.self_attn.forget_gate.{part}": renamed(f"layers.*.self_attn.{part}") for part in GATES},
    "layers.*.self_attn.forget_gate.A_log": renamed("layers.*.self_attn.A_log", ones=(0, 1, 3)),
    "layers.*.self_attn.conv1d.weight": Weights(("layers.*.self_attn.conv_weight",), ones=(1,)),
    "layers.*.self_attn.o_norm": renamed("layers.*.self_attn.norm"),
}
OTHER_FIELDS = ("rope_parameters", "n_routed_experts", "num_mtp_layers", ("first_k_dense_replace",))
KIMI_LINEAR = ArchitectureMap(
    native="kimi_linear",
    family="moe",
    fixed={
        **{name: value for name, value in DEEPSEEK_V3.fixed.items() if name != "attention_pattern"},
        "position_encoding": "none",
    },
    fields={
        **{name: row for name, row in DEEPSEEK_V3.fields.items() if name not in OTHER_FIELDS},
        "num_local_experts": "num_experts",
        "linear_num_heads": "linear_num_key_heads",  # there are as many value heads, as ours derives
        "linear_head_dim": "linear_key_head_dim",
        "hidden_act": MustEqual("silu"),  # also in convolutions, where ours is always silu
        **layer_kinds(KINDS),
        ("mlp_layer_types",): Computed(
            lambda native: {"mlp_pattern": list(native.mlp_layer_types)},
            lambda ours: {"mlp_layer_types": list(ours.mlp_kinds)},
        ),
    },
    weights=DEEPSEEK_V3.weights | KIMI_DELTA,
)
