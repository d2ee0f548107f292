"""GPT-2, GPT-Neo, GPT-J, Phi and GPT-NeoX."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted, MustEqual
from ..rotary import ROTARY_WITH_PART, flat_rope
from ..weights import by_head, fused, query_key_value, renamed

# Fields of GPT2DoubleHeadsModel.
SUMMARY = [f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")]
# Of GPT-2 and GPT-J.
SIZES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "norm_eps",
    "resid_pdrop": "hidden_dropout",
    "embd_pdrop": "hidden_dropout",  # ours has one dropout for both; the residual's is taken where they differ
    "attn_pdrop": "attention_dropout",
}
FIXED = {"norm_type": "layernorm", "mlp_type": "mlp", "mlp_bias": True}
NAMES = {
    "wte": renamed("embed_tokens"),
    "wpe": renamed("position_encoding"),
    "h.*.ln_1": renamed("layers.*.input_layernorm"),
    "h.*.ln_2": renamed("layers.*.post_attention_layernorm"),
    "ln_f": renamed("norm"),
}
GPT2 = ArchitectureMap(
    native="gpt2",
    fixed={**FIXED, "position_encoding": "learned", "attention_bias": True},
    fields={
        **SIZES,
        "scale_attn_weights": Converted(
            "attention_multiplier", lambda scaled: None if scaled else 1.0, lambda factor: factor != 1.0
        ),
        "scale_attn_by_inverse_layer_idx": MustEqual(False),
        "reorder_and_upcast_attn": IRRELEVANT,  # the same product, in fp32
        **dict.fromkeys(SUMMARY, IRRELEVANT),
    },
    weights={
        **NAMES,
        "h.*.attn.c_attn": query_key_value(transposed=True),
        "h.*.attn.c_proj": renamed("layers.*.self_attn.o_proj", transposed=True),
        "h.*.ln_cross_attn": renamed("layers.*.cross_attention_layernorm"),
        "h.*.crossattention.q_attn": renamed("layers.*.cross_attn.q_proj", transposed=True),
        "h.*.crossattention.c_attn": fused("k_proj", "v_proj", under="layers.*.cross_attn", transposed=True),
        "h.*.crossattention.c_proj": renamed("layers.*.cross_attn.o_proj", transposed=True),
        "h.*.mlp.c_fc": renamed("layers.*.mlp.up_proj", transposed=True),
        "h.*.mlp.c_proj": renamed("layers.*.mlp.down_proj", transposed=True),
    },
)

NEO_KINDS = {"global": "full_attention", "local": "sliding_attention"}


def _read_neo_layers(native) -> dict:
    kinds = [NEO_KINDS[name] for name in native.attention_layers]
    window = native.window_size if "sliding_attention" in kinds else None
    return {"attention_pattern": kinds, "sliding_window": window}


def _write_neo_layers(ours) -> dict:
    names = {kind: name for name, kind in NEO_KINDS.items()}
    # A kind that GPT-Neo does not have is written as "global", which then shows as the difference.
    layers = [names.get(kind, "global") for kind in ours.attention_kinds]
    window = {} if ours.sliding_window is None else {"window_size": ours.sliding_window}
    return {"attention_types": [[layers, 1]], **window}


GPT_NEO = ArchitectureMap(
    native="gpt_neo",
    fixed={
        **FIXED,
        "position_encoding": "learned",
        "attention_out_bias": True,
        "attention_multiplier": 1.0,  # scores are not scaled
    },
    fields={
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "norm_eps",
        "resid_dropout": "hidden_dropout",
        "embed_dropout": "hidden_dropout",
        "classifier_dropout": IRRELEVANT,
        ("attention_types", "window_size"): Computed(_read_neo_layers, _write_neo_layers),
    },
    weights={
        **NAMES,
        **{f"h.*.attn.attention.{part}_proj": renamed(f"layers.*.self_attn.{part}_proj") for part in "qkv"},
        "h.*.attn.attention.out_proj": renamed("layers.*.self_attn.o_proj"),
        "h.*.mlp.c_fc": renamed("layers.*.mlp.up_proj"),
        "h.*.mlp.c_proj": renamed("layers.*.mlp.down_proj"),
    },
)


def _read_rotated(native) -> dict:
    head_dim = native.n_embd // native.n_head
    part = (native.rotary_dim or native.n_embd) / head_dim
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}}


GPT_J = ArchitectureMap(
    native="gptj",
    fixed={**FIXED, "lm_head_bias": True, "block": "parallel"},
    fields={
        **SIZES,
        ("rotary_dim",): Computed(
            _read_rotated,
            lambda ours: {"rotary_dim": int(ours.head_dim * (flat_rope(ours) or {}).get("partial_rotary_factor", 1.0))},
        ),
    },
    weights={
        **NAMES,
        **{f"h.*.attn.{part}_proj": renamed(f"layers.*.self_attn.{part}_proj", paired=True) for part in "qk"},
        "h.*.attn.v_proj": renamed("layers.*.self_attn.v_proj"),
        "h.*.attn.out_proj": renamed("layers.*.self_attn.o_proj"),
        "h.*.mlp.fc_in": renamed("layers.*.mlp.up_proj"),
        "h.*.mlp.fc_out": renamed("layers.*.mlp.down_proj"),
    },
    tolerance=1e-6,  # its table of sines is fp32
)

PHI = ArchitectureMap(
    native="phi",
    fixed=GPT_J.fixed | {"attention_bias": True},
    fields={
        "layer_norm_eps": "norm_eps",
        "resid_pdrop": "hidden_dropout",
        "embd_pdrop": "hidden_dropout",
        "qk_layernorm": "qk_norm",
        "rope_parameters": ROTARY_WITH_PART,
    },
    weights={
        **{f"layers.*.self_attn.{part}_layernorm": renamed(f"layers.*.self_attn.{part}_norm") for part in "qk"},
        "layers.*.self_attn.dense": renamed("layers.*.self_attn.o_proj"),
        "layers.*.mlp.fc1": renamed("layers.*.mlp.up_proj"),
        "layers.*.mlp.fc2": renamed("layers.*.mlp.down_proj"),
        "final_layernorm": renamed("norm"),
    },
)

GPT_NEOX = ArchitectureMap(
    native="gpt_neox",
    fixed=FIXED,
    fields={
        "layer_norm_eps": "norm_eps",
        "classifier_dropout": IRRELEVANT,
        "rope_parameters": ROTARY_WITH_PART,
        ("use_parallel_residual",): Computed(
            lambda native: {"block": "parallel", "parallel_norms": 2} if native.use_parallel_residual else {},
            lambda ours: {"use_parallel_residual": ours.block == "parallel"},
        ),
        "is_decoder": IRRELEVANT,
    },
    weights={
        "embed_in": renamed("embed_tokens"),
        "layers.*.attention.query_key_value": query_key_value(layout=by_head),
        "layers.*.attention.dense": renamed("layers.*.self_attn.o_proj"),
        "layers.*.mlp.dense_h_to_4h": renamed("layers.*.mlp.up_proj"),
        "layers.*.mlp.dense_4h_to_h": renamed("layers.*.mlp.down_proj"),
        "final_layer_norm": renamed("norm"),
    },
)
