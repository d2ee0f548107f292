"""What rules, listings and plans read about schemes and kinds of attention, filled into the rows of traits.py.

Standard library only.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..families import DECODER, ENCODER, FAMILIES, MOE, SEQ2SEQ
from ..traits import ATTENTION_KINDS, PLAIN, POSITION_SCHEMES


def _head_dim(c) -> int:
    return c.head_dim or c.hidden_size // c.num_attention_heads


def _head_matrices(count: int):
    """config -> the values of `count` matrices of K x (K + 1) for each key/value head."""

    def values(c) -> int:
        heads = c.num_key_value_heads or c.num_attention_heads
        size = _head_dim(c)
        return count * heads * size * (size + 1)

    return values


def _delta_sizes(c) -> tuple[int, int, int, int]:
    """Heads of keys and of values, channels of a key and of a value, of delta nets."""
    size = _head_dim(c)
    keys, values = c.linear_num_key_heads or c.num_attention_heads, c.linear_num_value_heads
    return keys, values or keys, c.linear_key_head_dim or size, c.linear_value_head_dim or c.linear_key_head_dim or size


def _delta_values(c) -> int:
    keys, values, key_size, value_size = _delta_sizes(c)
    return values * key_size * value_size + (2 * keys * key_size + values * value_size) * (c.linear_conv_kernel_dim - 1)


def _single_score_faults(c, kind: str) -> Iterator[str]:
    if POSITION_SCHEMES[c.position_encoding].acts_on == "scores":
        yield (
            f"position_encoding={c.position_encoding!r} adds to single scores, which {kind} does not have; rotary, "
            f"learned, sinusoidal and none go with it"
        )


def _linear_faults(c) -> Iterator[str]:
    yield from _single_score_faults(c, "linear_attention")
    unset = {
        "attn_logit_softcapping": (None, "leave it null"),
        "attention_dropout": (0, "set it to 0 and use hidden_dropout"),
        "attention_multiplier": (None, "leave it null"),
    }
    for name, (value, instead) in unset.items():
        if getattr(c, name) != value:
            yield f"{name}={getattr(c, name)} acts on single scores, which linear_attention has not; {instead}"


def _delta_faults(c, kind: str) -> Iterator[str]:
    yield from _single_score_faults(c, kind)
    keys, values, *_ = _delta_sizes(c)
    if values % keys != 0:
        yield (
            f"linear_num_value_heads={values} is no multiple of linear_num_key_heads="
            f"{keys}: each head of keys serves as many of values"
        )


def _window_faults(c) -> Iterator[str]:
    if c.sliding_window == 1 and getattr(c, "model_type", DECODER) != ENCODER:
        yield "sliding_window=1 must be at least 2: transformers' cache of a window of 1 forgets no token"


def _latent_faults(c) -> Iterator[str]:
    if c.num_key_value_heads not in (None, c.num_attention_heads):
        yield (
            f"num_key_value_heads={c.num_key_value_heads} is not for latent_attention, which makes keys and "
            f"values of all {c.num_attention_heads} heads of one latent; leave it null"
        )
    if c.qk_norm:
        yield "qk_norm=True is not for latent_attention, which norms its latents; set qk_norm=False"
    rope = c.rope_parameters or {}
    part = (rope.get(PLAIN) or rope).get("partial_rotary_factor", 1.0)
    rotates = POSITION_SCHEMES[c.position_encoding].acts_on == "rotation" and c.head_dim is not None
    if rotates and int(c.head_dim * part) != c.qk_rope_head_dim:
        yield (
            f"qk_rope_head_dim={c.qk_rope_head_dim} is what latent_attention rotates, but of head_dim="
            f"{c.head_dim} {int(c.head_dim * part)} channels rotate; leave head_dim null, or set partial_rotary_factor"
        )


def _recurrent_faults(c) -> Iterator[str]:
    if POSITION_SCHEMES[c.position_encoding].absolute:
        yield (
            f"position_encoding={c.position_encoding!r} numbers the tokens of a row, but recurrent_attention "
            f"remembers tokens of any number of segments; rotary, alibi, relative and none know distances"
        )


def _sinusoidal_plane_faults(c) -> Iterator[str]:
    if c.hidden_size % 4 != 0:
        yield (
            f"hidden_size={c.hidden_size} is no multiple of 4, but position_encoding='sinusoidal' has sines "
            f"and cosines of rows and of columns"
        )


def _rotary_plane_faults(c) -> Iterator[str]:
    rope = c.rope_parameters or {}
    rope_type, rotated = rope.get("rope_type", "default"), int(_head_dim(c) * rope.get("partial_rotary_factor", 1.0))
    if rope_type != "default":
        yield (
            f"rope_parameters.rope_type={rope_type!r} stretches rows of tokens; a vision transformer "
            f"has 'default', and interpolate_pos_encoding for larger images"
        )
    if rotated % 4 != 0:
        yield (
            f"position_encoding='rotary' rotates {rotated} channels of each head, half of them by "
            f"the row and half by the column of a patch, in pairs; the number must be a multiple of 4"
        )


def _relative_faults(c) -> Iterator[str]:
    buckets = c.relative_attention_num_buckets
    if buckets < 2 or c.relative_attention_max_distance <= buckets // 2:
        yield (
            f"relative_attention_max_distance={c.relative_attention_max_distance} must be above half of "
            f"relative_attention_num_buckets={buckets} (at least 2): the first half of the buckets holds one distance "
            f"each"
        )


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
    "learned": dict(absolute=True, plane=True),
    "sinusoidal": dict(absolute=True, plane=True, plane_faults=_sinusoidal_plane_faults),
    "rotary": dict(plane=True, plane_faults=_rotary_plane_faults),
    "relative": dict(faults=_relative_faults),
    "disentangled": dict(bidirectional=True),
}
CAUSAL = (DECODER, MOE)
OF_KINDS = {
    PLAIN: dict(families=FAMILIES),
    "sliding_attention": dict(
        families=(*CAUSAL, ENCODER, SEQ2SEQ), needs=WINDOW, companions={"sliding_window": 4}, faults=_window_faults
    ),
    "strided_attention": dict(families=(*CAUSAL, ENCODER), needs=STRIDE, companions={"attention_stride": 3}),
    "chunked_attention": dict(families=CAUSAL, needs=CHUNK, companions={"attention_chunk_size": 4}),
    "block_sparse_attention": dict(families=CAUSAL, needs=BLOCKS, companions={"block_size": 3}),
    "local_global_attention": dict(families=(ENCODER,), needs=WINDOW, companions={"sliding_window": 3}),
    "latent_attention": dict(
        families=CAUSAL,
        needs=LATENT,
        companions={"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 10}
        | {"num_key_value_heads": None},
        faults=_latent_faults,
    ),
    "linear_attention": dict(families=CAUSAL, state_values=_head_matrices(1), faults=_linear_faults),
    **{
        kind: dict(families=CAUSAL, state_values=_delta_values, faults=partial(_delta_faults, kind=kind))
        for kind in ("gated_delta_attention", "kimi_delta_attention", "mamba2_attention")
    },
    "compressive_attention": dict(
        families=CAUSAL, needs=SEGMENT, companions={"segment_length": 4}, state_values=_head_matrices(2)
    ),
    "recurrent_attention": dict(
        families=CAUSAL,
        needs=SEGMENT | MEMORY,
        companions={"segment_length": 4, "memory_length": 4},
        faults=_recurrent_faults,
    ),
}
for rows, added in ((POSITION_SCHEMES, OF_SCHEMES), (ATTENTION_KINDS, OF_KINDS)):
    rows.update({name: replace(rows[name], **values) for name, values in added.items()})
