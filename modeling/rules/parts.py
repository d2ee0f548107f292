"""Which settings of a layer's parts are refused: residual form, positions, attention, feed-forward, experts.

Standard library only. `..._faults` are generators of sentences, as in legality.py.
"""

from ..traits import (
    ATTENTION_KINDS,
    PARTS,
    POSITION_SCHEMES,
    attention_kinds,
    cache_type,
    has_experts,
    mlp_kinds,
)

POSITION_PLACES = ("embeddings", "layers", "queries_keys")
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
ATTENTION_GATES = ("head", "channel")
MLP_KINDS = ("dense", "sparse")
ROUTER_SCORINGS = ("softmax", "sigmoid")


def one_of(c, name: str, values):
    """A sentence if a field has none of `values`; for a config without the field the first of them is assumed."""
    if getattr(c, name, next(iter(values))) not in values:
        yield f"{name}={getattr(c, name)!r} is not known; known: {', '.join(values)}"


# ------------------------------------------------------------------------------------------------------- residual form


def block_faults(c):
    """One sentence for each setting of the residual form that no block has."""
    yield from _norm_positions(c)
    yield from one_of(c, "block", PARTS.block)
    if c.block == "parallel" and c.norm_position != "pre":
        yield (
            f"norm_position={c.norm_position!r} does not go with block='parallel', whose norms are before both parts; "
            f"'pre' does"
        )
    if c.parallel_norms not in (1, 2):
        yield f"parallel_norms={c.parallel_norms} is not known; known: 1 (for both parts), 2 (one for each)"
    if c.parallel_norms != 1 and c.block != "parallel":
        yield f"parallel_norms={c.parallel_norms} is read by block='parallel' alone; leave it at 1"


def _norm_positions(c):
    """One form for all layers, or {kind of attention: its form}."""
    forms, used = c.norm_position, dict.fromkeys(attention_kinds(c))
    for kind, form in (forms if isinstance(forms, dict) else {None: forms}).items():
        field = "norm_position" if kind is None else f"norm_position.{kind}"
        if kind is not None and kind not in used:
            yield f"{field}={form!r} is read by no layer; layers of this model are {', '.join(used)}"
        if form not in PARTS.norm_position:
            yield f"{field}={form!r} is not known; known: {', '.join(PARTS.norm_position)}"
    missing = [kind for kind in used if isinstance(forms, dict) and kind not in forms]
    if missing:
        yield f"norm_position has no entry for {missing[0]!r}, which layers of this model use"


# ----------------------------------------------------------------------------------------------------------- positions


def scheme_of(c):
    """The traits of a config's position scheme."""
    return POSITION_SCHEMES[c.position_encoding]


def _head_dim(c):
    return c.head_dim or getattr(c, "qk_rope_head_dim", None) or c.hidden_size // c.num_attention_heads


def own_classes(c) -> list[str]:
    """The kinds of attention, and the position scheme, that have an attention class of their own."""
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
    for name in (name for name in by_type if name and cache_type(name) != name):
        yield f"rope_parameters.{name} is read by no layer: {name} layers read that of {cache_type(name)}"
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
    yield from one_of(c, "position_at", POSITION_PLACES)
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
    by_type = rope_parameters_of(c)
    by_kind = [int(by_type.get(cache_type(kind), 0) is not None) for kind in attention_kinds(c)]
    if 0 in by_kind and layers != by_kind:
        yield (
            f"no_rope_layers={layers} differs from {by_kind}, which the null entries of rope_parameters say; leave "
            f"no_rope_layers null"
        )


def _has_layers_without_rope(c) -> bool:
    by_type = rope_parameters_of(c)
    unrotated = {kind for kind in attention_kinds(c) if by_type.get(cache_type(kind), 0) is None}
    return scheme_of(c).acts_on == "rotation" and (bool(unrotated) or 0 in (c.no_rope_layers or ()))


def scale_faults(c):
    """Faults of the scaling of queries and keys after their rotation, one sentence each."""
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


# ------------------------------------------------------------------------------------------ attention and feed-forward


def part_faults(c):
    """Faults of the parts of attention and of the feed-forward layer, one sentence each."""
    if c.mlp_type == "clamped_glu" and c.hidden_act not in ("silu", "swish"):
        yield (
            f"hidden_act={c.hidden_act!r} is not read by mlp_type='clamped_glu', whose gate is a silu with "
            f"swiglu_alpha; leave it at 'silu'"
        )
    if c.mlp_type != "clamped_glu" and (c.swiglu_limit, c.swiglu_alpha) != (7.0, 1.702):
        yield (
            f"swiglu_limit={c.swiglu_limit} and swiglu_alpha={c.swiglu_alpha} are read by mlp_type='clamped_glu' "
            f"alone; leave them at 7.0 and 1.702"
        )
    if c.attention_gate not in (None, *ATTENTION_GATES):
        yield f"attention_gate={c.attention_gate!r} is not known; known: {', '.join(ATTENTION_GATES)}"
    special = own_classes(c)
    ungated = next((name for name in special if not getattr(ATTENTION_KINDS.get(name), "own_gate", False)), None)
    if c.attention_gate is not None and ungated is not None:
        yield f"attention_gate={c.attention_gate!r} does not go with {ungated}, whose class has none"
    of_softmax = ("attention_sinks", "value_residual", "differential_attention")
    part = next((name for name in of_softmax if getattr(c, name, False)), None)
    if part is not None and special:
        yield (
            f"{part}=True is a part of softmax attention over tokens, and {special[0]} is computed "
            f"by a class without; set {part}=False"
        )
    classes = [f"{name}=True" for name in PARTS.attention_class if getattr(c, name, False)]
    classes += [f"position_at={c.position_at!r}"] if c.position_at == "queries_keys" else []
    if len(classes) > 1:
        yield f"{' and '.join(classes)} are two classes of attention; set one of them"
    if getattr(c, "value_residual", False) and getattr(c, "num_nextn_predict_layers", 0) > 0:
        yield (
            f"num_nextn_predict_layers={c.num_nextn_predict_layers} adds modules behind the layers, which the first "
            f"layer's values do not reach; set value_residual=False"
        )
    if getattr(c, "differential_attention", False):
        yield from _differential_faults(c)


def _differential_faults(c):
    heads = c.num_key_value_heads or c.num_attention_heads
    if heads % 2:
        field = "num_attention_heads" if c.num_key_value_heads is None else "num_key_value_heads"
        yield f"{field}={heads} is odd, but differential_attention=True pairs heads; choose an even number"
    if c.attention_dropout:
        yield (
            f"attention_dropout={c.attention_dropout} would differ in the two softmaxes of "
            f"differential_attention=True; set it to 0 and use hidden_dropout"
        )


# ------------------------------------------------------------------------------------------------------------- experts


def expert_faults(c):
    """Faults of experts, and of their settings where there are none, one sentence each."""
    if has_experts(c) and getattr(c, "model_type", "anyformer_decoder") == "anyformer_decoder":
        yield f"num_experts={c.num_experts} is not for a dense decoder; use family moe, or leave num_experts null"
    if not has_experts(c) and getattr(c, "model_type", None) == "anyformer_moe":
        yield "num_experts is null, but a mixture-of-experts decoder has experts; set it, or use family decoder"
    if has_experts(c):
        yield from _sparse_layer_faults(c)
        yield from _router_faults(c)
    else:
        layout = _layout(c)
        if layout is not None:
            yield f"{layout}={getattr(c, layout)} is used by no layer; set num_experts or leave it null"
        if getattr(c, "output_router_logits", False):
            yield "output_router_logits=True needs experts, and this model has none; leave it false or set num_experts"


def _layout(c):
    """The field that names sparse layers, or None."""
    return next((name for name in ("mlp_pattern", "mlp_layer_types") if getattr(c, name, None) is not None), None)


def _sparse_layer_faults(c):
    kinds, groups = mlp_kinds(c), getattr(c, "num_hidden_groups", None)
    if any(kind not in MLP_KINDS for kind in kinds):
        yield f"{_layout(c)}={getattr(c, _layout(c))} is not known; known: {', '.join(MLP_KINDS)}"
    if len(kinds) != c.num_hidden_layers:
        yield f"mlp_layer_types names {len(kinds)} layers, but num_hidden_layers={c.num_hidden_layers}"
    if c.mlp_pattern and c.mlp_layer_types is not None and c.mlp_layer_types != kinds:
        yield (
            f"mlp_pattern={c.mlp_pattern} and mlp_layer_types={c.mlp_layer_types} say different things; leave "
            f"mlp_layer_types null"
        )
    if "sparse" not in kinds:
        yield f"num_experts={c.num_experts} is used by no layer; name sparse in mlp_pattern, or leave it null"
    if groups is not None and groups < c.num_hidden_layers and len(set(kinds)) > 1:
        yield (
            f"num_hidden_groups={groups} shares weights between layers, which must then be alike: one "
            f"kind in mlp_pattern"
        )


def _router_faults(c):
    if c.num_experts_per_tok > c.num_experts:
        yield f"num_experts_per_tok={c.num_experts_per_tok} is more than num_experts={c.num_experts}"
    yield from one_of(c, "router_scoring", ROUTER_SCORINGS)
    if c.norm_topk_prob and c.num_experts_per_tok == 1 < c.num_experts:
        yield (
            "norm_topk_prob=True makes the weight of num_experts_per_tok=1 always 1, so that the router learns nothing "
            "from the loss; set norm_topk_prob=False"
        )
    yield from _group_faults(c)
    if c.shared_expert_gate and not c.shared_expert_intermediate_size:
        yield "shared_expert_gate=True needs a shared expert; set shared_expert_intermediate_size"


def _group_faults(c):
    """Faults of groups of experts; each may be a consequence of the one before it."""
    groups, kept = (getattr(c, name, None) for name in ("n_group", "topk_group"))
    if groups is kept is None:
        return
    if groups is None or kept is None:
        yield f"n_group={groups} and topk_group={kept} belong together; set both, or leave both null"
    if c.num_experts % groups:
        yield f"n_group={groups} does not divide num_experts={c.num_experts}"
    size, best = c.num_experts // groups, 1 if c.router_scoring == "softmax" else 2
    if size < best:
        yield (
            f"n_group={groups} makes groups of 1, but router_scoring={c.router_scoring!r} compares them by their best "
            f"two experts; at most {c.num_experts // best} do"
        )
    if kept > groups or size * kept < c.num_experts_per_tok:
        fewest = -(-c.num_experts_per_tok // size)
        yield (
            f"topk_group={kept} must be at most n_group={groups}, and at least {fewest}: so many groups of {size} "
            f"hold num_experts_per_tok={c.num_experts_per_tok} experts"
        )
