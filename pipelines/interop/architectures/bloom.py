"""BLOOM and MPT: ALiBi."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, MustEqual
from ..weights import by_head, query_key_value, renamed
from .gpt import FIXED

# Of BLOOM and Falcon.
NAMES = {
    "word_embeddings": renamed("embed_tokens"),
    "h.*.input_layernorm": renamed("layers.*.input_layernorm"),
    "h.*.self_attention.dense": renamed("layers.*.self_attn.o_proj"),
    "h.*.mlp.dense_h_to_4h": renamed("layers.*.mlp.up_proj"),
    "h.*.mlp.dense_4h_to_h": renamed("layers.*.mlp.down_proj"),
    "ln_f": renamed("norm"),
}
BLOOM = ArchitectureMap(
    native="bloom",
    fixed={
        **FIXED,
        "position_encoding": "alibi",
        "hidden_act": "gelu_pytorch_tanh",  # the fused kernel of BloomGelu's tanh form
        "attention_bias": True,
        "embedding_norm": True,
    },
    fields={
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "seq_length": "max_position_embeddings",  # not read, and not in every published config
        "layer_norm_epsilon": "norm_eps",
        "apply_residual_connection_post_layernorm": MustEqual(False),
        # The layout of Megatron's ranks; the sums are the same up to rounding.
        ("pretraining_tp", "slow_but_exact"): IRRELEVANT,
    },
    weights={
        **NAMES,
        "word_embeddings_layernorm": renamed("embedding_norm"),
        "h.*.self_attention.query_key_value": query_key_value(layout=by_head),
        "h.*.post_attention_layernorm": renamed("layers.*.post_attention_layernorm"),
    },
    tolerance=1e-7,  # BloomGelu writes sqrt(2/pi) with 8 digits
)

# Several fields of a published MPT are read by MosaicML's code only; transformers' class computes as if they had the
# value below. A model that was trained with another one is wrong in transformers, so it is refused rather than copied.
MPT = ArchitectureMap(
    native="mpt",
    fixed={
        "position_encoding": "alibi",
        "norm_type": "layernorm",
        "norm_bias": False,
        "mlp_type": "mlp",
        "hidden_act": "gelu",
    },
    fields={
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
        "layer_norm_epsilon": "norm_eps",
        "attn_config.softmax_scale": "attention_multiplier",
        "attn_config.clip_qkv": MustEqual(None),
        "attn_config.alibi": MustEqual(True),
        "attn_config.alibi_bias_max": MustEqual(8),
        "attn_config.attn_type": MustEqual("multihead_attention"),
        "attn_config.attn_uses_sequence_id": MustEqual(False),
        "attn_config.prefix_lm": MustEqual(False),
        "attn_config.qk_ln": MustEqual(False),
        "attn_config.attn_impl": IRRELEVANT,
        "attn_config.attn_pdrop": IRRELEVANT,  # transformers accepts whole numbers only
        "expansion_ratio": MustEqual(4),
        "logit_scale": MustEqual(None),
        "no_bias": MustEqual(True),
        # learned_pos_emb has no effect beside ALiBi, in MosaicML's code as well.
        ("learned_pos_emb", "embedding_fraction", "resid_pdrop", "emb_pdrop", "init_device", "norm_type"): IRRELEVANT,
    },
    weights={
        "wte": renamed("embed_tokens"),
        "blocks.*.norm_1": renamed("layers.*.input_layernorm"),
        "blocks.*.attn.Wqkv": query_key_value(),
        "blocks.*.attn.out_proj": renamed("layers.*.self_attn.o_proj"),
        "blocks.*.norm_2": renamed("layers.*.post_attention_layernorm"),
        "blocks.*.ffn.up_proj": renamed("layers.*.mlp.up_proj"),
        "blocks.*.ffn.down_proj": renamed("layers.*.mlp.down_proj"),
        "norm_f": renamed("norm"),
    },
)
