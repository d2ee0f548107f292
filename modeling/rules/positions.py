"""Faults of positions, for legality.py: generators of the sentences that a user reads. Standard library only."""

from ..traits import ATTENTION_KINDS, POSITION_SCHEMES, attention_kinds, cache_type

POSITION_PLACES = ("embeddings", "layers", "queries_keys")
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


def scheme_of(c):
    """The traits of a config's position scheme."""
    return POSITION_SCHEMES[c.position_encoding]


def _head_dim(c):
    return c.head_dim or getattr(c, "qk_rope_head_dim", None) or c.hidden_size // c.num_attention_heads


def own_classes(c) -> list[str]:
    """The kinds of attention, and the position scheme, that are computed by classes of their own."""
    kinds = [kind for kind in attention_kinds(c) if kind in ATTENTION_KINDS and ATTENTION_KINDS[kind].own_scores]
    return kinds + ([c.position_encoding] if scheme_of(c).acts_on == "attention" else [])


def rope_parameters_of(c) -> dict[str, dict]:
    """The rotary parameters of each layer type: nested ones as they are, flat ones under ""."""
    parameters = c.rope_parameters or {}
    nested = {key: value for key, value in parameters.items() if key in ATTENTION_KINDS}
    return nested or {"": parameters}


def rotary_faults(c):
    """Faults of the rotary parameters, one sentence each."""
    if "rope_parameters" not in scheme_of(c).fields:
        return
    by_type = rope_parameters_of(c)
    for kind in ATTENTION_KINDS:
        if "" not in by_type and kind in attention_kinds(c) and cache_type(kind) not in by_type:
            yield f"rope_parameters has no entry for {cache_type(kind)!r}, which layers of this model use"
    if "" not in by_type and all(parameters is None for parameters in by_type.values()):
        yield "rope_parameters is null for every kind of layer; position_encoding='none' is a model without positions"
    for name, parameters in by_type.items():
        if name and parameters is None:  # layers without positions
            continue
        field = f"rope_parameters.{name}." if name else "rope_parameters."
        if not isinstance(parameters, dict):
            yield f"{field[:-1]}={parameters} is not a mapping of settings, such as {{rope_theta: 10000}}"
            return
        rope_type = parameters.get("rope_type", "default")
        if rope_type not in ROPE_TYPES:
            yield f"{field}rope_type={rope_type!r} is not known; known: {', '.join(ROPE_TYPES)}"
        for key in ("rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"):
            value = parameters.get(key)
            if value is not None and not (isinstance(value, int | float) and 0 < value < 1e18):
                yield f"{field}{key}={value} is not a positive number"
                return
        part = parameters.get("partial_rotary_factor", 1.0)
        rotated = int(_head_dim(c) * part)
        if rotated % 2 or not 0 < rotated <= _head_dim(c):
            if part == 1.0:
                yield (
                    f"head_dim={_head_dim(c)} is odd, but position_encoding='rotary' rotates pairs of channels; "
                    f"choose an even head_dim (hidden_size / num_attention_heads)"
                )
            else:
                yield (
                    f"{field}partial_rotary_factor={part} rotates {rotated} of {_head_dim(c)} channels; the number "
                    f"must be even, above 0 and at most head_dim"
                )


def position_place_faults(c):
    """Faults of `position_at`, one sentence each."""
    place, width = c.position_at, getattr(c, "embedding_size", None)
    if place not in POSITION_PLACES:
        yield f"position_at={place!r} is not known; known: {', '.join(POSITION_PLACES)}"
    if place == "embeddings":
        return
    if scheme_of(c).acts_on != "embeddings":
        yield (
            f"position_at={place!r} says where position embeddings are added, and position_encoding="
            f"{c.position_encoding!r} has none; 'learned' and 'sinusoidal' have"
        )
    if width not in (None, c.hidden_size):
        yield f"position_at={place!r} adds hidden_size={c.hidden_size} channels; leave embedding_size={width} null"
    if place == "queries_keys" and own_classes(c):
        yield f"position_at={place!r} does not go with {own_classes(c)[0]}, a class of its own; 'layers' does"


def rope_layer_faults(c):
    """Faults of `no_rope_layers`, one sentence each."""
    layers = c.no_rope_layers
    if layers is None:
        return
    if scheme_of(c).acts_on != "rotation":
        yield f"no_rope_layers={layers} is read by position_encoding='rotary' alone, not by {c.position_encoding!r}"
    if len(layers) != c.num_hidden_layers or not set(layers) <= {0, 1}:
        yield (
            f"no_rope_layers={layers} must hold a number for each of num_hidden_layers={c.num_hidden_layers}: 1 where "
            f"queries and keys are rotated, 0 where not"
        )


def _has_layers_without_rope(c) -> bool:
    by_type = rope_parameters_of(c)
    unrotated = {kind for kind in attention_kinds(c) if by_type.get(cache_type(kind), 0) is None}
    return scheme_of(c).acts_on == "rotation" and (bool(unrotated) or 0 in (c.no_rope_layers or ()))


def scale_faults(c):
    """Faults of what scales queries and keys behind their rotation, one sentence each."""
    tunes, normalises = getattr(c, "attn_temperature_tuning", False), getattr(c, "qk_l2_norm", False)
    rotates = scheme_of(c).acts_on == "rotation"
    unrotated = c.position_encoding == "none" or _has_layers_without_rope(c)
    if tunes and not unrotated:
        yield (
            "attn_temperature_tuning=True is for layers without positions, and this model has none; name them in "
            "no_rope_layers, or set position_encoding='none'"
        )
    if normalises and not rotates:
        yield f"qk_l2_norm=True is for rotated queries, not for position_encoding={c.position_encoding!r}; 'rotary' is"
    if normalises and c.qk_norm:
        yield "qk_l2_norm=True and qk_norm=True are two norms of the same queries; set one of them"
    if (tunes or normalises) and own_classes(c):
        name = "attn_temperature_tuning" if tunes else "qk_l2_norm"
        yield f"{name}=True does not go with {own_classes(c)[0]}, whose class does not scale its queries"
