"""A model's sizes at another width, for the ladder of `anyformer scaling` and the base of training.transfer."""

from typing import Any

from anyformer.modeling.rules.legality import check_legal

from ..errors import UserError, did_you_mean
from .introspection import bounds_of, family_config
from .schema import Recipe
from .types import show, within_bounds

CHANNELS = ("intermediate_size", "embedding_size", "moe_intermediate_size")  # they grow in proportion to the width
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", *CHANNELS)
FIELD = "training.transfer.base"


def head_size(fields: dict[str, Any], wanted_by: str) -> int:
    """Channels of an attention head. Raises UserError where the fields lack the width or the heads."""
    for name in ("hidden_size", "num_attention_heads"):
        if fields.get(name) is None:
            raise UserError(f"model.{name} is not set, and {wanted_by}; set it, or name a preset that does")
    return fields["hidden_size"] // fields["num_attention_heads"]


def in_width(fields: dict[str, Any], width: int, setting: str, wanted_by: str = "sizes follow from it") -> dict:
    """The sizes that change when a model gets another width, of those that its fields set.

    Heads keep their size, so that a narrower model has fewer; other numbers of channels are scaled with the width.
    setting: the setting that gives the width. Raises UserError for a width that is no whole number of heads.
    """
    head = head_size(fields, wanted_by)
    if width % head or width < head:
        raise UserError(f"{setting}: {width} is no multiple of {head}, the size of a head of this recipe")
    sizes = {"hidden_size": width, "num_attention_heads": width // head}
    heads = fields["num_attention_heads"]
    groups = fields.get("num_key_value_heads")
    if groups is not None:
        heads_per_group = heads // groups
        sizes["num_key_value_heads"] = max(1, width // head // heads_per_group)
        if width // head % sizes["num_key_value_heads"]:
            raise UserError(
                f"{setting}: {width} has {width // head} heads, which {groups} key and value heads for {heads} do "
                f"not divide; choose multiples of {head * heads_per_group}"
            )
    for name in CHANNELS:
        if fields.get(name) is not None:
            sizes[name] = max(8, round(fields[name] * width / fields["hidden_size"] / 8) * 8)
    return sizes


def base_fields(recipe: Recipe) -> dict[str, Any]:
    """The model's fields in the sizes of training.transfer.base. Raises UserError for an impossible base."""
    base = recipe.training.transfer.base
    fields = recipe.model.fields
    for name in base:
        if name not in SIZES:
            raise UserError(f"{FIELD}.{name} is no size of a model{did_you_mean(name, SIZES)}")
    if not {"hidden_size", "num_hidden_layers"} & base.keys():
        raise UserError(f"{FIELD}={show(base)} says no size; set hidden_size, num_hidden_layers or both")
    for name, value in base.items():
        within_bounds(value, bounds_of(at_least=1), f"{FIELD}.{name}")
    width = base.get("hidden_size")
    wanted_by = f"{FIELD}.hidden_size is compared with it"
    narrow = {} if width is None else in_width(fields, width, f"{FIELD}.hidden_size", wanted_by)
    resized = fields | narrow | base
    if width is not None and head_size(resized, wanted_by) != head_size(fields, wanted_by):
        raise UserError(
            f"{FIELD}={show(base)} has heads of {head_size(resized, wanted_by)} channels, and the model of "
            f"{head_size(fields, wanted_by)}; rates transfer where heads keep their size"
        )
    return resized


def multipliers(config, base) -> dict[str, float]:
    """The multipliers of a model by its growth from its base. config, base: configs of both, or namespaces.

    Logits are divided by the growth of the width (Yang et al. 2022, table 8), and what a layer adds to the hidden
    states by the growth of the depth (Dey et al. 2025, CompleteP, alpha = 1).
    """
    width, base_width = (getattr(c, "embedding_size", None) or c.hidden_size for c in (config, base))
    depth = base.num_hidden_layers / config.num_hidden_layers
    fields = {}
    if width != base_width and hasattr(config, "logit_multiplier"):
        fields["logit_multiplier"] = config.logit_multiplier * base_width / width
    if depth != 1:
        fields["residual_multiplier"] = config.residual_multiplier * depth
    return fields


def check_transfer(recipe: Recipe, config) -> None:
    """Raise UserError if training.transfer cannot be used. config: the model's as a namespace; None: a checkpoint."""
    optim = recipe.training.optim
    if config is None:
        raise UserError("training.transfer is of fresh weights, not those of model.name_or_path; remove one of them")
    if optim != "muon" and not optim.startswith("adamw"):
        raise UserError(f"training.optim={optim}: training.transfer knows the rules of adamw and muon; set one of them")
    base = family_config(recipe.model.family, base_fields(recipe))
    try:
        check_legal(base)
        check_legal(family_config(recipe.model.family, recipe.model.fields | multipliers(config, base)))
    except ValueError as error:
        raise UserError(f"training.transfer: {error}") from None
