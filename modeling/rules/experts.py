"""The rows of the legality table about mixtures of experts, for legality.py. Standard library only."""

from ..traits import has_experts, mlp_kinds

MLP_KINDS = ("dense", "sparse")
ROUTER_SCORINGS = ("softmax", "sigmoid")
COUNTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "expert_capacity", "n_group", "topk_group")
NOT_NEGATIVE = ("shared_expert_intermediate_size", "router_aux_loss_coef", "router_z_loss_coef")
NOT_NEGATIVE += ("router_bias_update_rate", "router_jitter_noise")


def _first(c, names, is_bad):
    return next((name for name in names if getattr(c, name, None) is not None and is_bad(getattr(c, name))), None)


def _nonpositive(c):
    return _first(c, COUNTS, lambda value: value <= 0)


def _negative(c):
    return _first(c, NOT_NEGATIVE, lambda value: value < 0)


def _layout(c):
    """The field that names sparse layers, or None."""
    return next((name for name in ("mlp_pattern", "mlp_layer_types") if getattr(c, name, None) is not None), None)


def _shares_unlike_layers(c):
    groups = getattr(c, "num_hidden_groups", None)
    return groups is not None and groups < c.num_hidden_layers and len(set(mlp_kinds(c))) > 1


def _group_fault(c) -> str | None:
    """What is wrong with groups of experts, in one sentence, or None."""
    groups, kept = (getattr(c, name, None) for name in ("n_group", "topk_group"))
    if not has_experts(c) or groups is kept is None:
        return None
    if groups is None or kept is None:
        return f"n_group={groups} and topk_group={kept} belong together; set both, or leave both null"
    if c.num_experts % groups:
        return f"n_group={groups} does not divide num_experts={c.num_experts}"
    size, best = c.num_experts // groups, 1 if c.router_scoring == "softmax" else 2
    if size < best:
        return (
            f"n_group={groups} makes groups of 1, but router_scoring={c.router_scoring!r} compares them by their best "
            f"two experts; at most {c.num_experts // best} do"
        )
    if kept > groups or size * kept < c.num_experts_per_tok:
        fewest = -(-c.num_experts_per_tok // size)
        return (
            f"topk_group={kept} must be at most n_group={groups}, and at least {fewest}: so many groups of {size} "
            f"hold num_experts_per_tok={c.num_experts_per_tok} experts"
        )
    return None


# (is this config illegal?, the sentence a user reads), checked in order: later rows rely on earlier ones.
EXPERT_ROWS = [
    (
        lambda c: has_experts(c) and getattr(c, "model_type", "anyformer_decoder") == "anyformer_decoder",
        lambda c: f"num_experts={c.num_experts} is not for a dense decoder; use family moe, or leave num_experts null",
    ),
    (
        lambda c: not has_experts(c) and getattr(c, "model_type", None) == "anyformer_moe",
        lambda c: "num_experts is null, but a mixture-of-experts decoder has experts; set it, or use family decoder",
    ),
    (
        lambda c: _nonpositive(c) is not None,
        lambda c: f"{_nonpositive(c)}={getattr(c, _nonpositive(c))} is not a positive number",
    ),
    (
        lambda c: _negative(c) is not None,
        lambda c: f"{_negative(c)}={getattr(c, _negative(c))} is negative; 0 means none",
    ),
    (
        lambda c: not has_experts(c) and _layout(c) is not None,
        lambda c: f"{_layout(c)}={getattr(c, _layout(c))} is used by no layer; set num_experts or leave it null",
    ),
    (
        lambda c: not has_experts(c) and bool(getattr(c, "output_router_logits", False)),
        lambda c: "output_router_logits=True needs experts, and this model has none; leave it false or set num_experts",
    ),
    (
        lambda c: has_experts(c) and any(kind not in MLP_KINDS for kind in mlp_kinds(c)),
        lambda c: f"{_layout(c)}={getattr(c, _layout(c))} is not known; known: {', '.join(MLP_KINDS)}",
    ),
    (
        lambda c: has_experts(c) and len(mlp_kinds(c)) != c.num_hidden_layers,
        lambda c: f"mlp_layer_types names {len(mlp_kinds(c))} layers, but num_hidden_layers={c.num_hidden_layers}",
    ),
    (
        lambda c: (
            has_experts(c) and c.mlp_pattern and c.mlp_layer_types is not None and c.mlp_layer_types != mlp_kinds(c)
        ),
        lambda c: (
            f"mlp_pattern={c.mlp_pattern} and mlp_layer_types={c.mlp_layer_types} say different things; leave "
            f"mlp_layer_types null"
        ),
    ),
    (
        lambda c: has_experts(c) and "sparse" not in mlp_kinds(c),
        lambda c: f"num_experts={c.num_experts} is used by no layer; name sparse in mlp_pattern, or leave it null",
    ),
    (
        lambda c: has_experts(c) and c.num_experts_per_tok > c.num_experts,
        lambda c: f"num_experts_per_tok={c.num_experts_per_tok} is more than num_experts={c.num_experts}",
    ),
    (
        lambda c: has_experts(c) and c.router_scoring not in ROUTER_SCORINGS,
        lambda c: f"router_scoring={c.router_scoring!r} is not known; known: {', '.join(ROUTER_SCORINGS)}",
    ),
    (
        lambda c: has_experts(c) and c.norm_topk_prob and c.num_experts_per_tok == 1 < c.num_experts,
        lambda c: (
            "norm_topk_prob=True makes the weight of num_experts_per_tok=1 always 1, so that the router learns nothing "
            "from the loss; set norm_topk_prob=False"
        ),
    ),
    (lambda c: _group_fault(c) is not None, lambda c: _group_fault(c)),
    (
        lambda c: has_experts(c) and c.router_jitter_noise >= 1,
        lambda c: f"router_jitter_noise={c.router_jitter_noise} must be below 1, or it turns the router's input around",
    ),
    (
        lambda c: has_experts(c) and c.shared_expert_gate and not c.shared_expert_intermediate_size,
        lambda c: "shared_expert_gate=True needs a shared expert; set shared_expert_intermediate_size",
    ),
    (
        _shares_unlike_layers,
        lambda c: (
            f"num_hidden_groups={c.num_hidden_groups} shares weights between layers, which must then be alike: one "
            f"kind in mlp_pattern"
        ),
    ),
]
