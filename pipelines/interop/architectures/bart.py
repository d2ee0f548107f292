"""BART and Marian, the original Transformer: post-norm stacks over one table of tokens."""

import math

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, MustEqual, Same, classifier_dropout
from ..heads import SEQ2SEQ_CLASSIFIER
from ..weights import COMPUTED, Weights, renamed, tied

FIXED = {
    "norm_type": "layernorm",
    "norm_position": "post",
    "norm_eps": 1e-5,  # torch's default; configs have no such field
    "mlp_type": "mlp",
    "attention_bias": True,
    "mlp_bias": True,
    "lm_head_bias": True,
}


FIELDS = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_attention_heads",
    "decoder_attention_heads": Same("encoder_attention_heads"),
    "encoder_ffn_dim": "intermediate_size",
    "decoder_ffn_dim": Same("encoder_ffn_dim"),
    "activation_function": "hidden_act",
    "dropout": "hidden_dropout",
    ("encoder_layerdrop", "decoder_layerdrop", "activation_dropout"): IRRELEVANT,
    "init_std": "initializer_range",
    ("scale_embedding",): Computed(
        lambda native: {"embedding_multiplier": math.sqrt(native.d_model) if native.scale_embedding else 1.0},
        lambda ours: {"scale_embedding": ours.embedding_multiplier != 1},
    ),
    "forced_eos_token_id": IRRELEVANT,  # belongs to the generation config
    "is_decoder": MustEqual(False),
    "tie_word_embeddings": MustEqual(True),  # untied, encoder, decoder and head would have three tables
}


def _attention(native: str, ours: str) -> dict[str, Weights]:
    return {f"{native}.{name}_proj": renamed(f"{ours}.{own}_proj") for name, own in zip(("q", "k", "v", "out"), "qkvo")}


def _stack(stack: str, positions: Weights) -> dict[str, Weights]:
    """Rows of the encoder or the decoder; only the latter has cross-attention. Marian has no norm of embeddings."""
    layer = f"{stack}.layers.*"
    return {
        f"{stack}.embed_tokens": tied("encoder.embed_tokens"),
        f"{stack}.embed_positions": positions,
        f"{stack}.layernorm_embedding": renamed(f"{stack}.embedding_norm"),
        **_attention(f"{layer}.self_attn", f"{layer}.self_attn"),
        f"{layer}.self_attn_layer_norm": renamed(f"{layer}.input_layernorm"),
        **_attention(f"{layer}.encoder_attn", f"{layer}.cross_attn"),
        f"{layer}.encoder_attn_layer_norm": renamed(f"{layer}.cross_attention_layernorm"),
        f"{layer}.fc1": renamed(f"{layer}.mlp.up_proj"),
        f"{layer}.fc2": renamed(f"{layer}.mlp.down_proj"),
        f"{layer}.final_layer_norm": renamed(f"{layer}.post_attention_layernorm"),
    }


LANGUAGE_MODEL = {"final_logits_bias": renamed("lm_head.bias", ones=(0,))}

BART = ArchitectureMap(
    native="bart",
    family="seq2seq",
    fixed={**FIXED, "position_encoding": "learned", "position_offset": 2, "embedding_norm": True},
    fields={**FIELDS, **classifier_dropout("classifier_dropout")},
    weights={
        "shared": renamed("encoder.embed_tokens"),
        **_stack("encoder", renamed("encoder.position_encoding")),
        **_stack("decoder", renamed("decoder.position_encoding")),
    },
    heads={
        "AutoModel": {},
        "AutoModelForSeq2SeqLM": LANGUAGE_MODEL,
        "AutoModelForSequenceClassification": SEQ2SEQ_CLASSIFIER,
    },
)

MARIAN = ArchitectureMap(
    native="marian",
    family="seq2seq",
    fixed={**FIXED, "position_encoding": "sinusoidal"},
    fields={
        **FIELDS,
        "decoder_vocab_size": Same("vocab_size"),
        "share_encoder_decoder_embeddings": MustEqual(True),
    },
    weights={
        "shared": renamed("encoder.embed_tokens"),
        **_stack("encoder", COMPUTED),
        **_stack("decoder", COMPUTED),
    },
    heads={"AutoModel": {}, "AutoModelForSeq2SeqLM": LANGUAGE_MODEL},
    tolerance=1e-6,  # transformers keeps the sines as a table in fp32; ours are computed
)
