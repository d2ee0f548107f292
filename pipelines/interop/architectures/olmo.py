"""OLMo 2, 3 and Hybrid: norms of the outputs of attention and feed-forward, and of all queries or keys at once."""

from dataclasses import replace

from anyformer.modeling.traits import block_forms

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed
from ..rotary import NESTED_ROTARY, ROTARY
from ..weights import Weights, renamed
from .llama import FIELDS, WINDOWED_LAYERS
from .qwen_hybrid import HYBRID_FIELDS

OLMO_FIXED = {"norm_position": "inside", "qk_norm": True, "qk_norm_width": True}
OLMO_WEIGHTS = {
    "layers.*.post_attention_layernorm": renamed("layers.*.input_layernorm"),
    "layers.*.post_feedforward_layernorm": renamed("layers.*.post_attention_layernorm"),
}

OLMO2 = ArchitectureMap(native="olmo2", fixed=OLMO_FIXED, fields=FIELDS, weights=OLMO_WEIGHTS)
OLMO3 = replace(OLMO2, native="olmo3", fields={**FIELDS, "rope_parameters": NESTED_ROTARY, **WINDOWED_LAYERS})


def _read_rotation(native) -> dict:
    rotates = (native.rope_parameters or {}).get("rope_theta") is not None
    return {"position_encoding": "rotary", **ROTARY.read(native)} if rotates else {"position_encoding": "none"}


def _write_rotation(ours) -> dict:
    return {"rope_parameters": None} if ours.position_encoding == "none" else ROTARY.write(ours)


DELTA_PARTS = [f"{letter}_proj" for letter in "qkvabgo"] + ["A_log", "dt_bias"]
OLMO_DELTA = {
    **{f"layers.*.linear_attn.{part}": renamed(f"layers.*.self_attn.{part}") for part in DELTA_PARTS},
    "layers.*.linear_attn.conv1d.weight": Weights(("layers.*.self_attn.conv_weight",), ones=(1,)),
    "layers.*.linear_attn.o_norm": renamed("layers.*.self_attn.norm"),
}


def _weights_of_hybrid(ours) -> dict[str, Weights]:
    """`post_attention_layernorm` is before the feed-forward in one kind of layer, and after attention in the other."""
    inside = [i for i, form in enumerate(block_forms(ours)) if form == "inside"]
    norms = [(name, row.ours[0]) for name, row in OLMO_WEIGHTS.items()]
    return OLMO_DELTA | {
        name.replace("*", f"{i}"): renamed(target.replace("*", f"{i}")) for name, target in norms for i in inside
    }


OLMO_HYBRID = ArchitectureMap(
    native="olmo_hybrid",
    fixed={
        **OLMO_FIXED,
        "norm_position": {"gated_delta_attention": "pre", "full_attention": "inside"},
        "linear_norm_eps": 1e-5,  # transformers' class has no field for it
    },
    fields={
        **HYBRID_FIELDS,
        tuple(f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")): IRRELEVANT,
        "rope_parameters": Computed(_read_rotation, _write_rotation),
    },
    weights=_weights_of_hybrid,
)
