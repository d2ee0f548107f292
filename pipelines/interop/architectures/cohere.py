"""Command R (Cohere 1 and 2): LayerNorms without biases, attention and feed-forward side by side, one norm for both."""

from dataclasses import replace

from ..architecture_map import ArchitectureMap, Computed, MustEqual
from ..rotary import ROTARY
from ..weights import renamed
from .llama import read_layers

FIXED = {"norm_type": "layernorm", "norm_bias": False, "block": "parallel"}
FIELDS = {
    "layer_norm_eps": "norm_eps",
    "logit_scale": "logit_multiplier",
    "rope_parameters": ROTARY,
}
PAIRED = {
    f"layers.*.self_attn.{part}": renamed(f"layers.*.self_attn.{part}", paired=True) for part in ("q_proj", "k_proj")
}


def _read_layers(native) -> dict:
    """Layers of full attention have no positions."""
    rotated = [int(kind == "sliding_attention") for kind in native.layer_types]
    return read_layers(native) | {"no_rope_layers": None if all(rotated) else rotated}


COHERE = ArchitectureMap(
    native="cohere",
    fixed=FIXED,
    fields={**FIELDS, "use_qk_norm": MustEqual(False)},
    weights=PAIRED,
)
COHERE2 = replace(
    COHERE, native="cohere2", fields={**FIELDS, ("layer_types", "sliding_window"): Computed(_read_layers)}
)
