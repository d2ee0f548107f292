"""What rules, listings and plans read about schemes and kinds of attention, filled into the rows of traits.py.

Standard library only.
"""

from dataclasses import replace

from ..families import DECODER, ENCODER, FAMILIES, MOE, SEQ2SEQ
from ..traits import ATTENTION_KINDS, PLAIN, POSITION_SCHEMES, Rule


def _adds_single_scores(c) -> bool:
    return POSITION_SCHEMES[c.position_encoding].acts_on == "scores"


def _no_score_biases(kind: str) -> Rule:
    return (
        _adds_single_scores,
        lambda c: (
            f"position_encoding={c.position_encoding!r} adds to single scores, which {kind} does not have; rotary, "
            f"learned, sinusoidal and none go with it"
        ),
    )


def _no_single_scores(setting: str, unset, instead: str) -> Rule:
    """Linear attention has no matrix of scores for this setting to act on."""
    return (
        lambda c: getattr(c, setting) != unset,
        lambda c: f"{setting}={getattr(c, setting)} acts on single scores, which linear_attention has not; {instead}",
    )


def _head_matrices(count: int):
    """config -> the values of `count` matrices of K x (K + 1) for each key/value head."""

    def values(c) -> int:
        heads = c.num_key_value_heads or c.num_attention_heads
        size = c.head_dim or c.hidden_size // c.num_attention_heads
        return count * heads * size * (size + 1)

    return values


def _delta_sizes(c) -> tuple[int, int, int, int]:
    """Heads of keys and of values, channels of a key and of a value, of delta nets."""
    size = c.head_dim or c.hidden_size // c.num_attention_heads
    keys, values = c.linear_num_key_heads or c.num_attention_heads, c.linear_num_value_heads
    return keys, values or keys, c.linear_key_head_dim or size, c.linear_value_head_dim or c.linear_key_head_dim or size


def _delta_values(c) -> int:
    keys, values, key_size, value_size = _delta_sizes(c)
    return values * key_size * value_size + (2 * keys * key_size + values * value_size) * (c.linear_conv_kernel_dim - 1)


_UNEVEN_DELTA_HEADS: Rule = (
    lambda c: _delta_sizes(c)[1] % _delta_sizes(c)[0] != 0,
    lambda c: (
        f"linear_num_value_heads={_delta_sizes(c)[1]} is no multiple of linear_num_key_heads="
        f"{_delta_sizes(c)[0]}: each head of keys serves as many of values"
    ),
)


def _too_few_buckets(c) -> bool:
    buckets = c.relative_attention_num_buckets
    return buckets < 2 or c.relative_attention_max_distance <= buckets // 2


def _plane_rope_type(c) -> str:
    return (c.rope_parameters or {}).get("rope_type", "default")


def _rotated(c) -> int:
    rope = c.rope_parameters or {}
    return int(c.head_dim * (rope.get(PLAIN) or rope).get("partial_rotary_factor", 1.0))


def _plane_rotated(c) -> int:
    head_dim = c.head_dim if c.head_dim is not None else c.hidden_size // c.num_attention_heads
    return int(head_dim * (c.rope_parameters or {}).get("partial_rotary_factor", 1.0))


WINDOW = {"sliding_window": "the number of tokens a query sees (in an encoder, to each side)"}
CHUNK = {"attention_chunk_size": "the number of tokens of a chunk, outside which a query sees nothing"}
BLOCKS = {"block_size": "the number of tokens of a block"}
STRIDE = {"attention_stride": "the width of the local band and the distance of far keys"}
LATENT = {
    "kv_lora_rank": "the number of channels of which a token's keys and values are made",
    "qk_nope_head_dim": "the channels of a query or key without positions",
    "qk_rope_head_dim": "the channels of a query or key with positions",
    "v_head_dim": "the channels of a value",
}
SEGMENT = {"segment_length": "the number of tokens that are attended to one by one"}
MEMORY = {"memory_length": "the number of tokens before a segment that it still sees"}

OF_SCHEMES = {
    "none": dict(plane=True),
    "learned": dict(
        absolute=True,
        plane=True,
    ),
    "sinusoidal": dict(
        absolute=True,
        plane=True,
        plane_rules=(
            (
                lambda c: c.hidden_size % 4 != 0,
                lambda c: (
                    f"hidden_size={c.hidden_size} is no multiple of 4, but position_encoding='sinusoidal' has sines "
                    f"and cosines of rows and of columns"
                ),
            ),
        ),
    ),
    "rotary": dict(
        plane=True,
        plane_rules=(
            (
                lambda c: _plane_rope_type(c) != "default",
                lambda c: (
                    f"rope_parameters.rope_type={_plane_rope_type(c)!r} stretches rows of tokens; a vision transformer "
                    f"has 'default', and interpolate_pos_encoding for larger images"
                ),
            ),
            (
                lambda c: _plane_rotated(c) % 4 != 0,
                lambda c: (
                    f"position_encoding='rotary' rotates {_plane_rotated(c)} channels of each head, half of them by "
                    f"the row and half by the column of a patch, in pairs; the number must be a multiple of 4"
                ),
            ),
        ),
    ),
    "relative": dict(
        rules=(
            (
                _too_few_buckets,
                lambda c: (
                    f"relative_attention_max_distance={c.relative_attention_max_distance} must be above half of "
                    f"relative_attention_num_buckets={c.relative_attention_num_buckets} (at least 2): the first half "
                    f"of the buckets holds one distance each"
                ),
            ),
        ),
    ),
    "disentangled": dict(
        bidirectional=True,
    ),
}
OF_KINDS = {
    PLAIN: dict(families=FAMILIES),
    "sliding_attention": dict(
        families=(DECODER, MOE, ENCODER, SEQ2SEQ),
        needs=WINDOW,
        companions={"sliding_window": 4},
        rules=(
            (
                lambda c: c.sliding_window == 1 and getattr(c, "model_type", DECODER) != ENCODER,
                lambda c: "sliding_window=1 must be at least 2: transformers' cache of a window of 1 forgets no token",
            ),
        ),
    ),
    "strided_attention": dict(
        families=(DECODER, MOE, ENCODER),
        needs=STRIDE,
        companions={"attention_stride": 3},
    ),
    "chunked_attention": dict(
        families=(DECODER, MOE),
        needs=CHUNK,
        companions={"attention_chunk_size": 4},
    ),
    "block_sparse_attention": dict(
        families=(DECODER, MOE),
        needs=BLOCKS,
        companions={"block_size": 3},
    ),
    "local_global_attention": dict(
        families=(ENCODER,),
        needs=WINDOW,
        companions={"sliding_window": 3},
    ),
    "latent_attention": dict(
        families=(DECODER, MOE),
        needs=LATENT,
        companions={"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 10}
        | {"num_key_value_heads": None},
        rules=(
            (
                lambda c: c.num_key_value_heads not in (None, c.num_attention_heads),
                lambda c: (
                    f"num_key_value_heads={c.num_key_value_heads} is not for latent_attention, which makes keys and "
                    f"values of all {c.num_attention_heads} heads of one latent; leave it null"
                ),
            ),
            (
                lambda c: c.qk_norm,
                lambda c: "qk_norm=True is not for latent_attention, which norms its latents; set qk_norm=False",
            ),
            (
                lambda c: (
                    POSITION_SCHEMES[c.position_encoding].acts_on == "rotation"
                    and c.head_dim is not None
                    and _rotated(c) != c.qk_rope_head_dim
                ),
                lambda c: (
                    f"qk_rope_head_dim={c.qk_rope_head_dim} is what latent_attention rotates, but of head_dim="
                    f"{c.head_dim} {_rotated(c)} channels rotate; leave head_dim null, or set partial_rotary_factor"
                ),
            ),
        ),
    ),
    "linear_attention": dict(
        families=(DECODER, MOE),
        state_values=_head_matrices(1),
        rules=(
            _no_score_biases("linear_attention"),
            _no_single_scores("attn_logit_softcapping", None, "leave it null"),
            _no_single_scores("attention_dropout", 0, "set it to 0 and use hidden_dropout"),
            _no_single_scores("attention_multiplier", None, "leave it null"),
        ),
    ),
    **{
        kind: dict(
            families=(DECODER, MOE), state_values=_delta_values, rules=(_no_score_biases(kind), _UNEVEN_DELTA_HEADS)
        )
        for kind in ("gated_delta_attention", "kimi_delta_attention", "mamba2_attention")
    },
    "compressive_attention": dict(
        families=(DECODER, MOE),
        needs=SEGMENT,
        companions={"segment_length": 4},
        state_values=_head_matrices(2),
    ),
    "recurrent_attention": dict(
        families=(DECODER, MOE),
        needs=SEGMENT | MEMORY,
        companions={"segment_length": 4, "memory_length": 4},
        rules=(
            (
                lambda c: POSITION_SCHEMES[c.position_encoding].absolute,
                lambda c: (
                    f"position_encoding={c.position_encoding!r} numbers the tokens of a row, but recurrent_attention "
                    f"remembers tokens of any number of segments; rotary, alibi, relative and none know distances"
                ),
            ),
        ),
    ),
}
for rows, added in ((POSITION_SCHEMES, OF_SCHEMES), (ATTENTION_KINDS, OF_KINDS)):
    rows.update({name: replace(rows[name], **values) for name, values in added.items()})
