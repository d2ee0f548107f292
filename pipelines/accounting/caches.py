"""Bytes of the cache that generation keeps: of earlier tokens keys and values or their latents; states of a fixed size.

Standard library only. G key/value heads, K head size.
"""

from dataclasses import dataclass, replace

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import ATTENTION_KINDS, Kind, attention_kinds

# Of transformers' QuantizedCache: values that share a scale and a zero point; tokens that are kept as they are.
GROUP, RESIDUAL = 64, 128
FP32_BYTES = 4  # of the matrices that linear and compressive attention remember by, in every precision


@dataclass(frozen=True)
class CacheSize:
    """The cache of one row. Numbers of single values (floats) beside bytes, as some are kept in fp32 always.

    per_token: values that a token adds in all layers, as long as no window is full. source_token: those that a token of
    an encoder adds, once. tokens: the context for which `total_bytes` is counted.
    """

    per_token: int
    source_token: int
    tokens: int
    bytes_per_token: int
    total_bytes: int


def cache_size(config, tokens: int, bytes_per_value: int, source_tokens: int = 0) -> CacheSize | None:
    """The cache after `tokens` tokens (and `source_tokens` that an encoder has read); None for models that keep none.

    Layers that look at everything keep 2 G K values for each token, or what `Kind.cache_values` says; those with a
    window no more than it holds; linear, compressive and recurrent attention their states (see `Kind.lookback` and
    `Kind.state_values`).

    config: of one of our families, or a namespace with its fields.
    """
    is_pair = FAMILIES[config.model_type].has_decoder
    if not (is_pair or getattr(config, "use_cache", False)):
        return None
    heads = config.num_key_value_heads or config.num_attention_heads
    size = config.head_dim or config.hidden_size // config.num_attention_heads
    kinds = attention_kinds(config)
    if is_pair:
        kinds = kinds[:1] * (config.num_decoder_layers or config.num_hidden_layers)
    rows = [ATTENTION_KINDS[kind] for kind in kinds]
    one = 2 * heads * size
    values = [one if row.cache_values is None else row.cache_values(config) for row in rows]
    keys = sum(each * kept_tokens(row, config, tokens) for each, row in zip(values, rows))
    memories = sum(row.state_values(config) for row in rows if row.state_values is not None)
    per_token = sum(each for each, row in zip(values, rows) if not row.keeps_states)
    source = one * len(rows) if is_pair else 0
    total = (keys + source * source_tokens) * bytes_per_value + memories * FP32_BYTES
    return CacheSize(per_token, source, tokens, per_token * bytes_per_value, total)


def in_bits(size: CacheSize, bits: int, bytes_per_value: int) -> CacheSize:
    """The same with `bits` for each value of all tokens but the last RESIDUAL ones (Liu et al. 2024, KIVI).

    bytes_per_value: of those tokens, of the scales and of the zero points.
    """
    each = bits / 8 + 2 * bytes_per_value / GROUP
    kept = min(size.tokens, RESIDUAL)
    total = size.per_token * ((size.tokens - kept) * each + kept * bytes_per_value)
    return replace(size, bytes_per_token=round(size.per_token * each), total_bytes=round(total))


def kept_tokens(kind: Kind, config, tokens: int) -> int:
    """Of how many of the last tokens a layer of this kind keeps keys and values."""
    if kind.keeps_states:
        return kind.lookback(config)  # zeros where there are fewer tokens yet
    if kind.lookback is not None:
        return min(tokens, kind.lookback(config))
    return min(tokens, config.sliding_window) if kind.windowed else tokens
