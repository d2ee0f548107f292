"""Command R (Cohere 1 and 2): LayerNorms without biases, attention and feed-forward side by side, one norm for both."""

from ..architecture_map import ArchitectureMap, Computed, MustEqual, same
from ..rotary import ROTARY
from ..weights import renamed
from .llama import WINDOWED_LAYERS, read_layers

FIXED = {"position_encoding": "rotary", "norm_type": "layernorm", "norm_bias": False, "mlp_type": "glu"}
FIXED |= {"block": "parallel"}
FIELDS = {
    **same("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    **same("hidden_act", "max_position_embeddings", "initializer_range", "attention_dropout", "attention_bias"),
    "layer_norm_eps": "norm_eps",
    "logit_scale": "logit_multiplier",
    "rope_parameters": ROTARY,
}
PAIRED = {
    f"layers.*.self_attn.{part}": renamed(f"layers.*.self_attn.{part}", paired=True) for part in ("q_proj", "k_proj")
}


def _read_layers(native) -> dict:
    """Full layers have no positions."""
    rotated = [int(kind == "sliding_attention") for kind in native.layer_types]
    return read_layers(native) | {"no_rope_layers": None if all(rotated) else rotated}


COHERE = ArchitectureMap(
    native="cohere",
    fixed=FIXED,
    fields={**FIELDS, "use_qk_norm": MustEqual(False)},
    weights=PAIRED,
)
COHERE2 = ArchitectureMap(
    native="cohere2",
    fixed=FIXED,
    fields={
        **FIELDS,
        **{names: Computed(_read_layers, row.write) for names, row in WINDOWED_LAYERS.items()},
    },
    weights=PAIRED,
)
