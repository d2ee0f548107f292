"""Falcon with rotary positions, its attention and feed-forward side by side."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, MustEqual
from ..rotary import ROTARY
from ..weights import by_key_head, query_key_value, renamed
from .bloom import NAMES


def _read_layout(native) -> dict:
    heads = native.num_attention_heads
    old = 1 if native.multi_query else heads
    two_norms = native.new_decoder_architecture and native.num_ln_in_parallel_attn in (None, 2)
    return {
        "num_key_value_heads": native.num_kv_heads if native.new_decoder_architecture else old,
        "parallel_norms": 2 if two_norms else 1,
    }


def _write_layout(ours) -> dict:
    norms = {"num_ln_in_parallel_attn": ours.parallel_norms}
    return {"new_decoder_architecture": True, "num_kv_heads": ours.num_key_value_heads, **norms}


FALCON = ArchitectureMap(
    native="falcon",
    fixed={"norm_type": "layernorm", "mlp_type": "mlp", "block": "parallel"},
    fields={
        "ffn_hidden_size": "intermediate_size",
        "layer_norm_epsilon": "norm_eps",
        "activation": "hidden_act",
        ("bias",): Computed(
            lambda native: {"attention_bias": native.bias, "mlp_bias": native.bias},
            lambda ours: {"bias": ours.attention_bias},
        ),
        "alibi": MustEqual(False),
        "parallel_attn": MustEqual(True),
        ("new_decoder_architecture", "multi_query", "num_kv_heads", "num_ln_in_parallel_attn"): Computed(
            _read_layout, _write_layout
        ),
        "rope_parameters": ROTARY,
        "n_embed": IRRELEVANT,
    },
    weights={
        **NAMES,
        "h.*.ln_attn": renamed("layers.*.input_layernorm"),
        "h.*.ln_mlp": renamed("layers.*.post_attention_layernorm"),
        "h.*.self_attention.query_key_value": query_key_value(layout=by_key_head),
    },
)
