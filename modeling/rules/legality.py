"""Which settings can be combined in one model: a sentence for each combination that cannot.

Standard library only, and it reads nothing but attributes: a real config, or a plain namespace of a recipe's fields,
can be checked before torch is imported. What schemes and kinds of attention need and refuse stands in kinds.py.
"""

import math

from ..families import DECODER, ENCODER, FAMILIES, SEQ2SEQ, VIT
from ..traits import (
    ATTENTION_KINDS,
    PARTS,
    POSITION_SCHEMES,
    attention_kinds,
    cache_type,
    has_experts,
    image_sides,
    implied_kind,
    mlp_kinds,
    one_way_kind,
)
from .bounds import bound_faults
from .parts import (
    block_faults,
    expert_faults,
    one_of,
    part_faults,
    position_place_faults,
    rope_layer_faults,
    rotary_faults,
    scale_faults,
    scheme_of,
)

POOLER_TYPES = ("cls", "mean")
POSITION_TERMS = ("c2p", "p2c")
INITIALIZER_RANGE = 0.02  # the default; configuration.py repeats the number, as recipes parse that file


def model_type_of(c) -> str:
    """The `model_type` of a config, or of a recipe's fields; a decoder's where there is none."""
    return getattr(c, "model_type", None) or DECODER


def kinds_of_family(c) -> tuple[str, ...]:
    """The kinds of attention that a config's family has."""
    model_type = model_type_of(c)
    return tuple(n for n, kind in ATTENTION_KINDS.items() if model_type in kind.families or model_type not in FAMILIES)


def _setting_faults(c):
    """Settings that a kind of attention needs and lacks, or that no layer uses (they would be silently ignored)."""
    used = attention_kinds(c)
    for setting in dict.fromkeys(name for kind in ATTENTION_KINDS.values() for name in (*kind.needs, *kind.sizes)):
        readers = [name for name, kind in ATTENTION_KINDS.items() if setting in kind.needs or setting in kind.sizes]
        using, value = next((kind for kind in used if kind in readers), None), getattr(c, setting, None)
        if using is None and value is not None:
            known = " or ".join(kind for kind in readers if kind in kinds_of_family(c)) or "no such setting here"
            yield f"{setting}={value} is used by no layer; name {known} in attention_pattern or leave {setting} null"
        elif using is not None and value is None and setting in ATTENTION_KINDS[using].needs:
            yield f"{setting} is not set, but {using} layers need it: {ATTENTION_KINDS[using].needs[setting]}"


def _kind_faults(c):
    """The sentences of the kinds of attention that a config has."""
    used = set(attention_kinds(c))
    for kind in (kind for name, kind in ATTENTION_KINDS.items() if name in used):
        yield from kind.faults(c)


def _divisors(number: int, near: int) -> str:
    """The three divisors of `number` nearest to `near`, as words: `4, 8 and 16 do`."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    best = sorted(sorted(divisors, key=lambda d: abs(math.log(d / near)))[:3])
    return f"{', '.join(map(str, best[:-1]))} and {best[-1]} do" if len(best) > 1 else f"{best[0]} does"


# ----------------------------------------------------------------------------------------------------- all families


def _residual_faults(c):
    yield from one_of(c, "position_encoding", POSITION_SCHEMES)
    yield from one_of(c, "norm_type", PARTS.norm_type)
    yield from block_faults(c)
    if getattr(c, "add_cross_attention", False) and c.block != "sequential":
        yield (
            f"add_cross_attention=True does not go with block={c.block!r}, which has no place between attention and "
            f"feed-forward; 'sequential' does"
        )
    yield from one_of(c, "mlp_type", PARTS.mlp_type)
    if c.qk_norm_width and not c.qk_norm:
        yield "qk_norm_width=True says what qk_norm=True norms; set both, or neither"
    if c.fan_in_init and c.initializer_range != INITIALIZER_RANGE:
        yield (
            f"initializer_range={c.initializer_range} spreads no weight where fan_in_init=True does; "
            f"leave it at {INITIALIZER_RANGE}, or set fan_in_init=False"
        )


def _head_faults(c):
    is_split = c.head_dim is None and getattr(c, "qk_rope_head_dim", None) is None
    if is_split and c.hidden_size % c.num_attention_heads != 0:
        yield (
            f"num_attention_heads={c.num_attention_heads} does not divide hidden_size={c.hidden_size}; "
            f"{_divisors(c.hidden_size, c.num_attention_heads)}"
        )
    if c.num_key_value_heads is not None and c.num_attention_heads % c.num_key_value_heads != 0:
        yield (
            f"num_key_value_heads={c.num_key_value_heads} does not divide "
            f"num_attention_heads={c.num_attention_heads}; {_divisors(c.num_attention_heads, c.num_key_value_heads)}"
        )


def _layer_faults(c):
    kinds = attention_kinds(c)
    # layer_types names caches: it cannot tell apart kinds that share one.
    named, known = c.attention_pattern or implied_kind(c), kinds_of_family(c)
    known = known if named else tuple(kind for kind in known if cache_type(kind) == kind)
    unknown = next((kind for kind in kinds if kind not in known), None)
    if c.layer_types is not None and len(c.layer_types) != c.num_hidden_layers:
        yield f"layer_types names {len(c.layer_types)} layers, but num_hidden_layers={c.num_hidden_layers}"
    if unknown is not None:
        yield (
            f"{'attention_pattern' if c.attention_pattern else 'layer_types'} holds {unknown!r}, which "
            f"{FAMILIES[model_type_of(c)].words} does not have; known: {', '.join(known)}"
        )
    if named and c.layer_types is not None and list(c.layer_types) != [cache_type(kind) for kind in kinds]:
        yield (
            f"attention_pattern={c.attention_pattern} and layer_types={c.layer_types} say different things; "
            f"leave layer_types null"
        )


def _attention_faults(c):
    if scheme_of(c).bidirectional and not FAMILIES[model_type_of(c)].bidirectional:
        yield (
            f"position_encoding={c.position_encoding!r} needs bidirectional attention; "
            f"{FAMILIES[model_type_of(c)].words} can use "
            f"{', '.join(name for name, scheme in POSITION_SCHEMES.items() if not scheme.bidirectional)}"
        )
    yield from _setting_faults(c)
    yield from _kind_faults(c)
    yield from rotary_faults(c)
    if getattr(c, "prefix_lm", False) and one_way_kind(c) is not None:
        yield (
            f"prefix_lm=True does not go with {one_way_kind(c)}, which reads tokens in their order only; "
            f"full_attention, sliding_attention and strided_attention can look ahead"
        )
    yield from scheme_of(c).faults(c)


# ------------------------------------------------------------------------------------------------- of one family


def _decoder_faults(c):
    if c.num_nextn_predict_layers > 0 and c.add_cross_attention:
        yield (
            f"num_nextn_predict_layers={c.num_nextn_predict_layers} adds modules that read no encoder; set "
            f"it to 0, or add_cross_attention=False"
        )
    if c.output_vocab_size is not None and c.output_vocab_size > c.vocab_size:
        yield f"output_vocab_size={c.output_vocab_size} must be at most vocab_size={c.vocab_size}"
    if c.output_vocab_size is not None and c.tie_word_embeddings:
        yield f"output_vocab_size={c.output_vocab_size} gives the head rows of its own; set tie_word_embeddings=False"


def _encoder_faults(c):
    yield from one_of(c, "pooler_type", POOLER_TYPES)
    yield from _group_faults(c)
    if c.skip_first_norm and not (c.norm_position == "pre" and c.block == "sequential" and c.embedding_norm):
        yield (
            "skip_first_norm=True needs norm_position='pre', block='sequential' and embedding_norm=True, whose "
            "norm it relies on"
        )
    if any(term not in POSITION_TERMS for term in c.pos_att_type or ()):
        yield f"pos_att_type={c.pos_att_type} is not known; known: {', '.join(POSITION_TERMS)}"
    has_global_tokens = any(ATTENTION_KINDS[kind].global_tokens for kind in attention_kinds(c))
    if has_global_tokens and scheme_of(c).adds_to_scores:
        yield (
            f"position_encoding={c.position_encoding!r} does not go with local_global_attention, whose global "
            f"tokens attend out of order; rotary, learned, sinusoidal and none do"
        )
    if c.task_head_transform and c.embedding_size not in (None, c.hidden_size):
        yield (
            f"task_head_transform=True makes {c.embedding_size} channels of hidden_size={c.hidden_size}, too few "
            f"for the task heads; leave embedding_size null"
        )
    yield from _deberta_faults(c)


def _group_faults(c):
    groups = c.num_hidden_groups
    if groups is None:
        return
    if c.num_hidden_layers % groups != 0:
        yield (
            f"num_hidden_groups={groups} does not divide num_hidden_layers={c.num_hidden_layers}; "
            f"{_divisors(c.num_hidden_layers, groups)}"
        )
    if c.num_hidden_layers > groups and (len(set(attention_kinds(c))) > 1 or c.skip_first_norm):
        yield (
            f"num_hidden_groups={groups} shares weights between layers, which must then be alike: "
            f"one kind of attention in attention_pattern, and skip_first_norm=False"
        )


def _deberta_faults(c):
    if c.mask_decoder_layers > 0 and not (scheme_of(c).bidirectional and c.norm_position == "post"):
        yield (
            f"mask_decoder_layers={c.mask_decoder_layers} needs position_encoding='disentangled' and "
            f"norm_position='post': it brings absolute positions in after the layers"
        )
    if c.mask_decoder_layers > 0 and c.embedding_size not in (None, c.hidden_size):
        yield (
            f"mask_decoder_layers={c.mask_decoder_layers} adds absolute positions of embedding_size="
            f"{c.embedding_size} channels to hidden_size={c.hidden_size}; leave embedding_size null"
        )
    if c.position_biased_input and not scheme_of(c).bidirectional:
        yield (
            f"position_biased_input=True is for position_encoding='disentangled'; with "
            f"{c.position_encoding!r} leave it false"
        )
    if c.conv_kernel_size > 0 and c.conv_kernel_size % 2 == 0:
        yield f"conv_kernel_size={c.conv_kernel_size} must be odd, or 0 for no convolution"
    if c.hidden_size % c.conv_groups != 0:
        yield (
            f"conv_groups={c.conv_groups} does not divide hidden_size={c.hidden_size}; "
            f"{_divisors(c.hidden_size, c.conv_groups)}"
        )


def _vit_faults(c):
    yield from one_of(c, "pooler_type", POOLER_TYPES)
    sides = image_sides(c)
    if len(sides) != 2:
        yield f"image_size={c.image_size} is no number of pixels; give one number, or height and width"
    if any(side % c.patch_size for side in sides):
        yield (
            f"patch_size={c.patch_size} does not divide image_size={c.image_size}; "
            f"{_divisors(math.gcd(*sides), c.patch_size)}"
        )
    if not scheme_of(c).plane:
        yield (
            f"position_encoding={c.position_encoding!r} counts distances in a row of tokens, but patches lie in a "
            f"plane; a vision transformer can use "
            f"{', '.join(name for name, scheme in POSITION_SCHEMES.items() if scheme.plane)}"
        )
    yield from scheme_of(c).plane_faults(c)
    if c.use_distillation_token and c.pooler_type != "cls":
        yield "use_distillation_token=True stands beside the class token, which pooler_type='mean' has not"
    if c.distillation_head and not c.use_distillation_token:
        yield "distillation_head=True reads the distillation token; set use_distillation_token=True"
    if getattr(c, "num_experts", None) is not None:
        yield (
            f"num_experts={c.num_experts} needs a balancing loss, which a vision transformer's heads do not have; "
            f"families moe, encoder and seq2seq do"
        )


def _seq2seq_faults(c):
    for kind in dict.fromkeys(map(cache_type, (*attention_kinds(c), *(c.attention_pattern or ())))):
        if (c.rope_parameters or {}).get(kind, kind) is None:
            fault = f"rope_parameters.{kind}=None, layers without positions, is for models of one stack"
            yield f"{fault}, and this one has two; give it a rope_theta"
    if c.no_rope_layers is not None:
        yield f"no_rope_layers={c.no_rope_layers} names the layers of one stack, but this model has two; leave it null"
    if c.block != "sequential":
        yield (
            f"block={c.block!r} has no place for attention to the encoder's tokens; a sequence-to-sequence model "
            f"can use 'sequential'"
        )
    of_encoder = {
        "layer_types": "attention_pattern" * (not c.attention_pattern and len(set(attention_kinds(c))) > 1),
        "mlp_layer_types": "mlp_pattern" * (has_experts(c) and not c.mlp_pattern and "dense" in mlp_kinds(c)),
    }
    for name, pattern in of_encoder.items():
        if pattern:
            yield (
                f"{name}={getattr(c, name)} names the encoder's layers only; name {pattern}, which both stacks follow"
            )


OF_FAMILY = {DECODER: _decoder_faults, ENCODER: _encoder_faults, VIT: _vit_faults, SEQ2SEQ: _seq2seq_faults}
# In this order: later ones rely on earlier ones, and all that count up to a number on bounds.
OF_ALL = (
    *(bound_faults, _residual_faults, part_faults, position_place_faults, rope_layer_faults, scale_faults),
    *(_head_faults, _layer_faults, _attention_faults),
)


def faults(c):
    """Sentences that refuse a config, the first one first; those that follow may be its consequences."""
    for of_part in (*OF_ALL, OF_FAMILY.get(model_type_of(c), lambda c: ()), expert_faults):
        yield from of_part(c)


def check_legal(config) -> None:
    """Raise ValueError if `config` cannot be built, with one sentence that names legal values."""
    if (sentence := next(faults(config), None)) is not None:
        raise ValueError(sentence)
