"""How many parameters a config describes, by arithmetic: nothing is built."""

from types import SimpleNamespace


def decoder_parameters(config: SimpleNamespace) -> int:
    """Return the parameters of a decoder, a tied head counted once.

    `config` has the fields of AnyformerDecoderConfig, underived ones (None) included. With `vocab_size=0` the count is
    that of everything but token embeddings and head.
    """
    D, H, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
    G = config.num_key_value_heads or H
    K = config.head_dim or D // H
    gated = config.mlp_type == "glu"
    # The width that configuration.py derives where none is given.
    F = config.intermediate_size or (-(-8 * D // (3 * 64)) * 64 if gated else 4 * D)

    out_bias = config.attention_bias if config.attention_out_bias is None else config.attention_out_bias
    attention = 2 * D * H * K + 2 * D * G * K + (H * K + 2 * G * K if config.attention_bias else 0)
    attention += D if out_bias else 0
    feed_forward = (3 if gated else 2) * D * F + ((2 * F if gated else F) + D if config.mlp_bias else 0)
    norm = 2 if config.norm_type == "layernorm" and config.norm_bias else 1  # parameters per channel
    layer_norms = 2 * D * norm + (2 * K * norm if config.qk_norm else 0)
    positions = {
        "learned": config.max_position_embeddings * D,
        "relative": config.relative_attention_num_buckets * H,
    }.get(config.position_encoding, 0)
    tokens = config.vocab_size * D * (1 if config.tie_word_embeddings else 2)
    outer_norms = D * norm * ((config.norm_position == "pre") + config.embedding_norm)
    return tokens + positions + layers * (attention + feed_forward + layer_norms) + outer_norms


def short_number(count: float) -> str:
    """Return a count as people say it: 4_981_248 -> '4.98M'."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"
