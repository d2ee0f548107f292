"""What can be combined with what in one model, as one table.

Standard library only, and it reads nothing but attributes: a real config, or a plain namespace of a recipe's fields,
can be checked before torch is imported.
"""

import math

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
POSITION_ENCODINGS = ("none", "learned", "rotary")
NORM_TYPES = ("layernorm", "rmsnorm")
NORM_POSITIONS = ("pre", "post")
MLP_TYPES = ("mlp", "glu")
LAYER_TYPES = ("full_attention",)

POSITIVE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
POSITIVE_OR_NONE = ("intermediate_size", "num_key_value_heads", "head_dim")
PROBABILITIES = ("hidden_dropout", "attention_dropout")


def _head_dim(c):
    return c.head_dim if c.head_dim is not None else c.hidden_size // c.num_attention_heads


def _rope_type(c):
    return (c.rope_parameters or {}).get("rope_type", "default")


def _divisors(number: int, near: int, most: int = 3) -> str:
    """The divisors of `number` nearest to `near`, as words: `4, 8 and 16`."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    found = sorted(sorted(divisors, key=lambda d: abs(math.log(d / near)))[:most])
    return f"{', '.join(map(str, found[:-1]))} and {found[-1]} do" if len(found) > 1 else f"{found[0]} does"


def _one_of(name, values):
    return (
        lambda c: getattr(c, name) not in values,
        lambda c: f"{name}={getattr(c, name)!r} is not known; known: {', '.join(values)}",
    )


def _positive(name, optional=False):
    def is_bad(c):
        value = getattr(c, name)
        return not (optional and value is None) and value < 1

    return is_bad, lambda c: f"{name}={getattr(c, name)} is not a positive number"


def _probability(name):
    return (
        lambda c: not 0 <= getattr(c, name) < 1,
        lambda c: f"{name}={getattr(c, name)} is not a probability; it must be at least 0 and below 1",
    )


# (is this config illegal?, the sentence a user reads), checked in order: later rows rely on earlier ones.
ILLEGAL = [
    *(_positive(name) for name in POSITIVE),
    *(_positive(name, optional=True) for name in POSITIVE_OR_NONE),
    *(_probability(name) for name in PROBABILITIES),
    _one_of("position_encoding", POSITION_ENCODINGS),
    _one_of("norm_type", NORM_TYPES),
    _one_of("norm_position", NORM_POSITIONS),
    _one_of("mlp_type", MLP_TYPES),
    (
        lambda c: c.head_dim is None and c.hidden_size % c.num_attention_heads != 0,
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
        lambda c: c.position_encoding == "rotary" and _head_dim(c) % 2 != 0,
        lambda c: (
            f"head_dim={_head_dim(c)} is odd, but position_encoding='rotary' rotates pairs of channels; "
            f"choose an even head_dim (hidden_size / num_attention_heads)"
        ),
    ),
    (
        lambda c: c.position_encoding == "rotary" and _rope_type(c) not in ROPE_TYPES,
        lambda c: f"rope_parameters.rope_type={_rope_type(c)!r} is not known; known: {', '.join(ROPE_TYPES)}",
    ),
    (
        lambda c: c.layer_types is not None and len(c.layer_types) != c.num_hidden_layers,
        lambda c: f"layer_types names {len(c.layer_types)} layers, but num_hidden_layers={c.num_hidden_layers}",
    ),
    (
        lambda c: c.layer_types is not None and any(t not in LAYER_TYPES for t in c.layer_types),
        lambda c: (
            f"layer_types holds {next(t for t in c.layer_types if t not in LAYER_TYPES)!r}, which a decoder does not "
            f"have; known: {', '.join(LAYER_TYPES)}"
        ),
    ),
]


def check_legal(config) -> None:
    """Raise ValueError, with the one sentence that says what is legal, if `config` cannot be built."""
    for is_illegal, sentence in ILLEGAL:
        if is_illegal(config):
            raise ValueError(sentence(config))
