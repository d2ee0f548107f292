"""Models of one shape in other sizes: a ladder's, and training.transfer's base. Standard library only."""

from typing import Any

from ..errors import UserError, did_you_mean
from .schema import Recipe
from .types import show

CHANNELS = ("intermediate_size", "embedding_size", "moe_intermediate_size")  # that keep their share of the width
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", *CHANNELS)
FIELD = "training.transfer.base"


def head_size(fields: dict[str, Any], wanted_by: str) -> int:
    """Channels of an attention head. Raises UserError where the fields do not say width and heads."""
    for name in ("hidden_size", "num_attention_heads"):
        if fields.get(name) is None:
            raise UserError(f"model.{name} is not set, and {wanted_by}; set it, or name a preset that does")
    return fields["hidden_size"] // fields["num_attention_heads"]


def in_width(fields: dict[str, Any], width: int, setting: str, wanted_by: str = "sizes follow from it") -> dict:
    """The sizes of a model in another width, of those that its fields say.

    Heads keep their size, so that a narrower model has fewer; what else is a number of channels keeps its share of the
    width. setting: where the width was asked for. Raises UserError for heads that do not come out whole.
    """
    head, own = head_size(fields, wanted_by), fields["hidden_size"]
    if width % head or width < head:
        raise UserError(f"{setting}: {width} is no multiple of {head}, the size of a head of this recipe")
    found = {"hidden_size": width, "num_attention_heads": width // head}
    heads, groups = fields["num_attention_heads"], fields.get("num_key_value_heads")
    if groups is not None:
        together = heads // groups
        found["num_key_value_heads"] = max(1, width // head // together)
        if width // head % found["num_key_value_heads"]:
            raise UserError(
                f"{setting}: {width} has {width // head} heads, which {groups} key and value heads for {heads} do "
                f"not divide; choose multiples of {head * together}"
            )
    for name in CHANNELS:
        if fields.get(name) is not None:
            found[name] = max(8, round(fields[name] * width / own / 8) * 8)
    return found


def base_fields(recipe: Recipe) -> dict[str, Any]:
    """The model's fields in the sizes of training.transfer.base. Raises UserError for a base that is none of it."""
    base, fields = recipe.training.transfer.base, recipe.model.fields
    for name in base:
        if name not in SIZES:
            raise UserError(f"{FIELD}.{name} is no size of a model{did_you_mean(name, SIZES)}")
    if not {"hidden_size", "num_hidden_layers"} & base.keys():
        raise UserError(f"{FIELD}={show(base)} says no size; set hidden_size, num_hidden_layers or both")
    if wrong := next((name for name, value in base.items() if value < 1), None):
        raise UserError(f"{FIELD}.{wrong}={base[wrong]} must be at least 1")
    width, wanted_by = base.get("hidden_size"), f"{FIELD}.hidden_size is compared with it"
    narrow = {} if width is None else in_width(fields, width, f"{FIELD}.hidden_size", wanted_by)
    found = fields | narrow | base
    if width is not None and head_size(found, wanted_by) != head_size(fields, wanted_by):
        raise UserError(
            f"{FIELD}={show(base)} has heads of {head_size(found, wanted_by)} channels, and the model of "
            f"{head_size(fields, wanted_by)}; rates transfer where heads keep their size"
        )
    return found


def multipliers(config, base) -> dict[str, float]:
    """The model's fields that differ from its base's. config, base: configs of both, or namespaces.

    Logits are divided by the growth of the width (Yang et al. 2022, table 8), and what a layer adds to the hidden
    states by the growth of the depth (Dey et al. 2025, CompleteP, alpha = 1).
    """
    own, of_base = (getattr(c, "embedding_size", None) or c.hidden_size for c in (config, base))
    found, depth = {}, base.num_hidden_layers / config.num_hidden_layers
    if own != of_base and hasattr(config, "logit_multiplier"):
        found["logit_multiplier"] = config.logit_multiplier * of_base / own
    if depth != 1:
        found["residual_multiplier"] = config.residual_multiplier * depth
    return found


def check_transfer(recipe: Recipe, config) -> None:
    """Raise UserError for training.transfer where nothing transfers. config: of the model, as a namespace, or None."""
    from anyformer.modeling.rules.legality import check_legal

    from .introspection import family_config

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
