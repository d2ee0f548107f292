"""Which settings can be combined in one model, as one table.

Standard library only, and it reads nothing but attributes: a real config, or a plain namespace of a recipe's fields,
can be checked before torch is imported. What schemes and kinds of attention need and refuse stands in kinds.py.
"""

import math

from ..families import DECODER, FAMILIES
from ..traits import (
    ATTENTION_KINDS,
    MLP_TYPES,
    NORM_TYPES,
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
    EXPERT_ROWS,
    PART_ROWS,
    block_faults,
    position_place_faults,
    rope_layer_faults,
    rotary_faults,
    scale_faults,
    scheme_of,
)

POOLER_TYPES = ("cls", "mean")
POSITION_TERMS = ("c2p", "p2c")
MEMORY_UPDATES = ("delta", "linear")

POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "alibi_bias_max",
    "embedding_multiplier",
    "logit_multiplier",
    "residual_multiplier",
    "swiglu_limit",
    "swiglu_alpha",
)
POSITIVE_OR_NONE = (
    "intermediate_size",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "attention_stride",
    "block_size",
    "block_stride",
    "attention_chunk_size",
    "segment_length",
    "memory_length",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "attention_multiplier",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
INITIALIZER_RANGE = 0.02  # where none is given; written out in configuration.py, which is read without torch
PROBABILITIES = ("hidden_dropout", "attention_dropout")


def model_type_of(c) -> str:
    """The `model_type` of a config, or of a recipe's fields; a decoder's where there is none."""
    return getattr(c, "model_type", None) or DECODER


def kinds_of_family(c) -> tuple[str, ...]:
    """The kinds of attention that a config's family has."""
    model_type = model_type_of(c)
    return tuple(n for n, kind in ATTENTION_KINDS.items() if model_type in kind.families or model_type not in FAMILIES)


def _pattern_and_layer_types_differ(c):
    derived = [cache_type(kind) for kind in attention_kinds(c)]
    said = c.attention_pattern or implied_kind(c)
    return bool(said) and c.layer_types is not None and list(c.layer_types) != derived


def _unknown_kind(c):
    return next((kind for kind in attention_kinds(c) if kind not in _known_kinds(c)), None)


def _known_kinds(c):
    kinds = kinds_of_family(c)
    # layer_types names caches; kinds that share one cannot be told apart by it.
    named = c.attention_pattern or implied_kind(c)
    return kinds if named else tuple(kind for kind in kinds if cache_type(kind) == kind)


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


def _rule_faults(c, rules):
    """The sentences of those `rules` that refuse a config."""
    return (sentence(c) for is_illegal, sentence in rules if is_illegal(c))


def _kind_rules(c):
    used = set(attention_kinds(c))
    return [rule for name, kind in ATTENTION_KINDS.items() if name in used for rule in kind.rules]


def _has_global_tokens(c) -> bool:
    return any(ATTENTION_KINDS[kind].global_tokens for kind in attention_kinds(c))


def _divisors(number: int, near: int) -> str:
    """The three divisors of `number` nearest to `near`, as words: `4, 8 and 16 do`."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    found = sorted(sorted(divisors, key=lambda d: abs(math.log(d / near)))[:3])
    return f"{', '.join(map(str, found[:-1]))} and {found[-1]} do" if len(found) > 1 else f"{found[0]} does"


def _one_of(name, values):
    return (
        lambda c: getattr(c, name) not in values,
        lambda c: f"{name}={getattr(c, name)!r} is not known; known: {', '.join(values)}",
    )


def _positive(name, optional=False):
    def is_bad(c):
        value = getattr(c, name, 1)  # a family without such a field has nothing wrong there
        return not (optional and value is None) and value <= 0

    return is_bad, lambda c: f"{name}={getattr(c, name)} is not a positive number"


def _probability(name, optional=False):
    return (
        lambda c: not (optional and getattr(c, name) is None) and not 0 <= getattr(c, name) < 1,
        lambda c: f"{name}={getattr(c, name)} is not a probability; it must be at least 0 and below 1",
    )


def _count(name, things):
    return (
        lambda c: getattr(c, name, 0) < 0,
        lambda c: f"{name}={getattr(c, name)} is not a number of {things}; 0 means none",
    )


def _first(faults):
    """A row of the table that is a generator of sentences."""
    return (lambda c: next(faults(c), None) is not None, lambda c: next(faults(c)))


# (is this config illegal?, the sentence a user reads), checked in order: later rows rely on earlier ones.
ILLEGAL = [
    *(_positive(name) for name in POSITIVE),
    *(_positive(name, optional=True) for name in POSITIVE_OR_NONE),
    *(_probability(name) for name in PROBABILITIES),
    _count("position_offset", "rows"),
    _count("num_sink_blocks", "blocks"),
    _count("num_random_blocks", "blocks"),
    _positive("num_local_blocks"),
    _first(bound_faults),  # before anything counts up to one of these numbers
    _one_of("position_encoding", POSITION_SCHEMES),
    _one_of("norm_type", NORM_TYPES),
    _first(block_faults),
    (
        lambda c: getattr(c, "add_cross_attention", False) and c.block != "sequential",
        lambda c: (
            f"add_cross_attention=True does not go with block={c.block!r}, which has no place between attention and "
            f"feed-forward; 'sequential' does"
        ),
    ),
    _one_of("mlp_type", MLP_TYPES),
    (
        lambda c: c.qk_norm_width and not c.qk_norm,
        lambda c: "qk_norm_width=True says what qk_norm=True norms; set both, or neither",
    ),
    *PART_ROWS,
    _first(position_place_faults),
    _first(rope_layer_faults),
    _first(scale_faults),
    (
        lambda c: c.fan_in_init and c.initializer_range != INITIALIZER_RANGE,
        lambda c: (
            f"initializer_range={c.initializer_range} spreads no weight where fan_in_init=True does; "
            f"leave it at {INITIALIZER_RANGE}, or set fan_in_init=False"
        ),
    ),
    (
        lambda c: (
            c.head_dim is None
            and getattr(c, "qk_rope_head_dim", None) is None
            and c.hidden_size % c.num_attention_heads != 0
        ),
        lambda c: (
            f"num_attention_heads={c.num_attention_heads} does not divide hidden_size={c.hidden_size}; "
            f"{_divisors(c.hidden_size, c.num_attention_heads)}"
        ),
    ),
    (
        lambda c: c.num_key_value_heads is not None and c.num_attention_heads % c.num_key_value_heads != 0,
        lambda c: (
            f"num_key_value_heads={c.num_key_value_heads} does not divide "
            f"num_attention_heads={c.num_attention_heads}; {_divisors(c.num_attention_heads, c.num_key_value_heads)}"
        ),
    ),
    (
        lambda c: c.layer_types is not None and len(c.layer_types) != c.num_hidden_layers,
        lambda c: f"layer_types names {len(c.layer_types)} layers, but num_hidden_layers={c.num_hidden_layers}",
    ),
    (
        lambda c: _unknown_kind(c) is not None,
        lambda c: (
            f"{'attention_pattern' if c.attention_pattern else 'layer_types'} holds {_unknown_kind(c)!r}, which "
            f"{FAMILIES[model_type_of(c)].words} does not have; known: {', '.join(_known_kinds(c))}"
        ),
    ),
    (
        _pattern_and_layer_types_differ,
        lambda c: (
            f"attention_pattern={c.attention_pattern} and layer_types={c.layer_types} say different things; "
            f"leave layer_types null"
        ),
    ),
    (
        lambda c: scheme_of(c).bidirectional and not FAMILIES[model_type_of(c)].bidirectional,
        lambda c: (
            f"position_encoding={c.position_encoding!r} needs bidirectional attention; "
            f"{FAMILIES[model_type_of(c)].words} can use "
            f"{', '.join(name for name, scheme in POSITION_SCHEMES.items() if not scheme.bidirectional)}"
        ),
    ),
    _first(_setting_faults),
    (
        lambda c: getattr(c, "memory_update", "delta") not in MEMORY_UPDATES,
        lambda c: f"memory_update={c.memory_update!r} is not known; known: {', '.join(MEMORY_UPDATES)}",
    ),
    _first(lambda c: _rule_faults(c, _kind_rules(c))),
    _first(rotary_faults),
    (
        lambda c: getattr(c, "prefix_lm", False) and one_way_kind(c) is not None,
        lambda c: (
            f"prefix_lm=True does not go with {one_way_kind(c)}, which reads tokens in their order only; "
            f"full_attention, sliding_attention and strided_attention can look ahead"
        ),
    ),
    _first(lambda c: _rule_faults(c, scheme_of(c).rules)),
]


def _layers_per_group(c):
    return c.num_hidden_layers // c.num_hidden_groups


def _of_one_stack(name: str, pattern: str, is_told_apart):
    """A row: the field `name` tells layers apart, but of the encoder alone."""
    return (
        is_told_apart,
        lambda c: (
            f"{name}={getattr(c, name)} names the encoder's layers only; name {pattern}, which both stacks follow"
        ),
    )


# Rows of one family, after the shared ones.
FAMILY_ILLEGAL = {
    "anyformer_decoder": [
        _count("num_nextn_predict_layers", "modules"),
        (
            lambda c: c.num_nextn_predict_layers > 0 and c.add_cross_attention,
            lambda c: (
                f"num_nextn_predict_layers={c.num_nextn_predict_layers} adds modules that read no encoder; set "
                f"it to 0, or add_cross_attention=False"
            ),
        ),
        _positive("output_vocab_size", optional=True),
        (
            lambda c: c.output_vocab_size is not None and c.output_vocab_size > c.vocab_size > 0,
            lambda c: f"output_vocab_size={c.output_vocab_size} must be at most vocab_size={c.vocab_size}",
        ),
        (
            lambda c: c.output_vocab_size is not None and c.tie_word_embeddings,
            lambda c: (
                f"output_vocab_size={c.output_vocab_size} gives the head rows of its own; set tie_word_embeddings=False"
            ),
        ),
    ],
    "anyformer_encoder": [
        _positive("embedding_size", optional=True),
        _positive("num_hidden_groups", optional=True),
        _positive("position_buckets", optional=True),
        _positive("max_relative_positions", optional=True),
        _one_of("pooler_type", POOLER_TYPES),
        (
            lambda c: c.num_hidden_groups is not None and c.num_hidden_layers % c.num_hidden_groups != 0,
            lambda c: (
                f"num_hidden_groups={c.num_hidden_groups} does not divide num_hidden_layers={c.num_hidden_layers}; "
                f"{_divisors(c.num_hidden_layers, c.num_hidden_groups)}"
            ),
        ),
        (
            lambda c: (
                c.num_hidden_groups is not None
                and _layers_per_group(c) > 1
                and (len(set(attention_kinds(c))) > 1 or c.skip_first_norm)
            ),
            lambda c: (
                f"num_hidden_groups={c.num_hidden_groups} shares weights between layers, which must then be alike: "
                f"one kind of attention in attention_pattern, and skip_first_norm=False"
            ),
        ),
        (
            lambda c: (
                c.skip_first_norm and not (c.norm_position == "pre" and c.block == "sequential" and c.embedding_norm)
            ),
            lambda c: (
                "skip_first_norm=True needs norm_position='pre', block='sequential' and embedding_norm=True, whose "
                "norm it relies on"
            ),
        ),
        (
            lambda c: any(term not in POSITION_TERMS for term in c.pos_att_type or ()),
            lambda c: f"pos_att_type={c.pos_att_type} is not known; known: {', '.join(POSITION_TERMS)}",
        ),
        (
            lambda c: _has_global_tokens(c) and scheme_of(c).adds_to_scores,
            lambda c: (
                f"position_encoding={c.position_encoding!r} does not go with local_global_attention, whose global "
                f"tokens attend out of order; rotary, learned, sinusoidal and none do"
            ),
        ),
        (
            lambda c: c.task_head_transform and c.embedding_size not in (None, c.hidden_size),
            lambda c: (
                f"task_head_transform=True makes {c.embedding_size} channels of hidden_size={c.hidden_size}, too few "
                f"for the task heads; leave embedding_size null"
            ),
        ),
        _count("type_vocab_size", "segments"),
        _count("mask_decoder_layers", "layers"),
        _probability("classifier_dropout", optional=True),
        (
            lambda c: c.mask_decoder_layers > 0 and not (scheme_of(c).bidirectional and c.norm_position == "post"),
            lambda c: (
                f"mask_decoder_layers={c.mask_decoder_layers} needs position_encoding='disentangled' and "
                f"norm_position='post': it brings absolute positions in after the layers"
            ),
        ),
        (
            lambda c: c.mask_decoder_layers > 0 and c.embedding_size not in (None, c.hidden_size),
            lambda c: (
                f"mask_decoder_layers={c.mask_decoder_layers} adds absolute positions of embedding_size="
                f"{c.embedding_size} channels to hidden_size={c.hidden_size}; leave embedding_size null"
            ),
        ),
        (
            lambda c: c.position_biased_input and not scheme_of(c).bidirectional,
            lambda c: (
                f"position_biased_input=True is for position_encoding='disentangled'; with "
                f"{c.position_encoding!r} leave it false"
            ),
        ),
        (
            lambda c: c.conv_kernel_size < 0 or (c.conv_kernel_size > 0 and c.conv_kernel_size % 2 == 0),
            lambda c: f"conv_kernel_size={c.conv_kernel_size} must be odd, or 0 for no convolution",
        ),
        (
            lambda c: c.conv_groups < 1 or c.hidden_size % c.conv_groups != 0,
            lambda c: (
                f"conv_groups={c.conv_groups} does not divide hidden_size={c.hidden_size}; "
                f"{_divisors(c.hidden_size, max(1, c.conv_groups))}"
            ),
        ),
    ],
    "anyformer_vit": [
        *(_positive(name) for name in ("patch_size", "num_channels")),
        *(_positive(name, optional=True) for name in ("encoder_stride", "pooler_output_size")),
        _count("num_register_tokens", "tokens"),
        _probability("label_smoothing"),
        _one_of("pooler_type", POOLER_TYPES),
        (
            lambda c: len(image_sides(c)) != 2 or min(image_sides(c)) <= 0,
            lambda c: f"image_size={c.image_size} is no number of pixels; give one number, or height and width",
        ),
        (
            lambda c: any(side % c.patch_size for side in image_sides(c)),
            lambda c: (
                f"patch_size={c.patch_size} does not divide image_size={c.image_size}; "
                f"{_divisors(math.gcd(*image_sides(c)), c.patch_size)}"
            ),
        ),
        (
            lambda c: not scheme_of(c).plane,
            lambda c: (
                f"position_encoding={c.position_encoding!r} counts distances in a row of tokens, but patches lie in a "
                f"plane; a vision transformer can use "
                f"{', '.join(name for name, scheme in POSITION_SCHEMES.items() if scheme.plane)}"
            ),
        ),
        _first(lambda c: _rule_faults(c, scheme_of(c).plane_rules)),
        (
            lambda c: c.use_distillation_token and c.pooler_type != "cls",
            lambda c: "use_distillation_token=True stands beside the class token, which pooler_type='mean' has not",
        ),
        (
            lambda c: c.distillation_head and not c.use_distillation_token,
            lambda c: "distillation_head=True reads the distillation token; set use_distillation_token=True",
        ),
        (
            lambda c: getattr(c, "num_experts", None) is not None,
            lambda c: (
                f"num_experts={c.num_experts} needs a balancing loss, which a vision transformer's heads do not have; "
                f"families moe, encoder and seq2seq do"
            ),
        ),
    ],
    "anyformer_seq2seq": [
        (
            lambda c: c.no_rope_layers is not None,
            lambda c: (
                f"no_rope_layers={c.no_rope_layers} names the layers of one stack, but this model has two; "
                f"leave it null"
            ),
        ),
        (
            lambda c: c.block != "sequential",
            lambda c: (
                f"block={c.block!r} has no place for attention to the encoder's tokens; a sequence-to-sequence model "
                f"can use 'sequential'"
            ),
        ),
        _positive("num_decoder_layers", optional=True),
        _of_one_stack(
            "layer_types", "attention_pattern", lambda c: not c.attention_pattern and len(set(attention_kinds(c))) > 1
        ),
        _of_one_stack(
            "mlp_layer_types",
            "mlp_pattern",
            lambda c: has_experts(c) and not c.mlp_pattern and "dense" in mlp_kinds(c),
        ),
        _probability("classifier_dropout", optional=True),
    ],
}


def check_legal(config) -> None:
    """Raise ValueError if `config` cannot be built, with one sentence that names legal values."""
    for is_illegal, sentence in (*ILLEGAL, *FAMILY_ILLEGAL.get(model_type_of(config), ()), *EXPERT_ROWS):
        if is_illegal(config):
            raise ValueError(sentence(config))
