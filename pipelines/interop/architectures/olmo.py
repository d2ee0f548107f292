"""OLMo 2 and 3: norms of what attention and feed-forward return, and of all queries and keys of a token at once."""

from ..architecture_map import ArchitectureMap, Computed
from ..rotary import NESTED_ROTARY
from ..weights import renamed
from .llama import FIELDS, FIXED, QK_NORMS, WEIGHTS, read_layers

OLMO_FIXED = {**FIXED, "norm_position": "inside", "qk_norm": True, "qk_norm_width": True}
OLMO_FIELDS = {name: row for name, row in FIELDS.items() if name != "head_dim"} | {"attention_bias": "attention_bias"}
OLMO_WEIGHTS = {name: row for name, row in WEIGHTS.items() if name != "layers.*.input_layernorm"} | QK_NORMS
OLMO_WEIGHTS |= {
    "layers.*.post_attention_layernorm": renamed("layers.*.input_layernorm"),
    "layers.*.post_feedforward_layernorm": renamed("layers.*.post_attention_layernorm"),
}

OLMO2 = ArchitectureMap(native="olmo2", preset="olmo2_1b", fixed=OLMO_FIXED, fields=OLMO_FIELDS, weights=OLMO_WEIGHTS)
OLMO3 = ArchitectureMap(
    native="olmo3",
    preset=None,
    fixed=OLMO_FIXED,
    fields={
        **OLMO_FIELDS,
        "rope_parameters": NESTED_ROTARY,
        ("layer_types", "sliding_window"): Computed(
            read_layers, lambda ours: {"layer_types": list(ours.layer_types), "sliding_window": ours.sliding_window}
        ),
    },
    weights=OLMO_WEIGHTS,
)
