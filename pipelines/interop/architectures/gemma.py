"""Gemma 1, 2 and 3 (texts): zero-centered norms, in 2 and 3 before and after both parts of a block."""

from ..architecture_map import ArchitectureMap, Computed, Converted, MustEqual
from ..rotary import NESTED_ROTARY, ROTARY
from ..weights import renamed
from .llama import WINDOWED_LAYERS

FIXED = {"norm_type": "rmsnorm_zero_centered"}
SANDWICH = {**FIXED, "norm_position": "both"}
ROOT = 1e-6  # transformers multiplies embeddings by the root of hidden_size in fp32

FIELDS = {
    "hidden_activation": "hidden_act",
    "rms_norm_eps": "norm_eps",
    ("hidden_size",): Computed(
        lambda native: {"hidden_size": native.hidden_size, "embedding_multiplier": native.hidden_size**0.5},
    ),
}
LAYERS = {
    **WINDOWED_LAYERS,
    "query_pre_attn_scalar": Converted(
        "attention_multiplier",
        lambda scalar: scalar**-0.5,
        lambda scale: None if scale is None else max(1, round(scale**-2)),
    ),
    "use_bidirectional_attention": MustEqual(False),
}
SANDWICH_NORMS = {
    "layers.*.post_attention_layernorm": renamed("layers.*.attention_output_layernorm"),
    "layers.*.pre_feedforward_layernorm": renamed("layers.*.post_attention_layernorm"),
    "layers.*.post_feedforward_layernorm": renamed("layers.*.mlp_output_layernorm"),
}

GEMMA = ArchitectureMap(
    native="gemma",
    fixed=FIXED,
    fields={
        **{name: row for name, row in FIELDS.items() if name != "hidden_activation"},
        "rope_parameters": ROTARY,
        "use_bidirectional_attention": MustEqual(None),
    },
    tolerance=ROOT,
)
GEMMA2 = ArchitectureMap(
    native="gemma2",
    fixed=SANDWICH,
    fields={**FIELDS, **LAYERS, "use_bidirectional_attention": MustEqual(None), "rope_parameters": ROTARY},
    weights=SANDWICH_NORMS,
    tolerance=ROOT,
)
GEMMA3 = ArchitectureMap(
    native="gemma3_text",
    fixed={**SANDWICH, "qk_norm": True},
    fields={
        **FIELDS,
        **LAYERS,
        "rope_parameters": NESTED_ROTARY,
        "attn_logit_softcapping": MustEqual(None),  # which transformers' class never reads
    },
    weights=SANDWICH_NORMS,
    tolerance=ROOT,
)
