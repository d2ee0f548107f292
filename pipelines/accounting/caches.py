"""Bytes of generation's cache: keys and values of earlier tokens, or their latents, and states of a fixed size.

Standard library only. G key/value heads, K head size.
"""

from dataclasses import dataclass

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import ATTENTION_KINDS, Kind, attention_kinds

FP32_BYTES = 4  # of the state matrices of linear and compressive attention, whatever the precision


@dataclass(frozen=True)
class CacheSize:
    """The cache of one row, in values (floats) and in bytes, since some values are always fp32.

    per_token: values that a token adds in all layers while no window is full. source_token: values that a token of the
    encoder adds, once. tokens: the context for which `total_bytes` is counted.
    """

    per_token: int
    source_token: int
    tokens: int
    bytes_per_token: int
    total_bytes: int


def cache_size(config, tokens: int, bytes_per_value: int, source_tokens: int = 0) -> CacheSize | None:
    """The cache after `tokens` tokens (and `source_tokens` of the encoder); None for models that keep none.

    Layers of full attention keep 2 G K values for each token, or as many as `Kind.cache_values` says; layers with a
    window keep those of the tokens in it; linear, compressive and recurrent attention keep states (see `Kind.lookback`
    and `Kind.state_values`).

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
    keys = sum(count * kept_tokens(row, config, tokens) for count, row in zip(values, rows))
    memories = sum(row.state_values(config) for row in rows if row.state_values is not None)
    per_token = sum(count for count, row in zip(values, rows) if not row.keeps_states)
    source = one * len(rows) if is_pair else 0
    total = (keys + source * source_tokens) * bytes_per_value + memories * FP32_BYTES
    return CacheSize(per_token, source, tokens, per_token * bytes_per_value, total)


def kept_tokens(kind: Kind, config, tokens: int) -> int:
    """For how many of the last tokens a layer of this kind keeps keys and values."""
    if kind.keeps_states:
        return kind.lookback(config)  # padded with zeros if there are fewer tokens
    if kind.lookback is not None:
        return min(tokens, kind.lookback(config))
    return min(tokens, config.sliding_window) if kind.windowed else tokens
