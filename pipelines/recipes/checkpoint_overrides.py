"""The fields of a checkpoint's config that a recipe may change: dropout, pooling and the reach of rotary positions.

All other fields must stay as they were when the weights were trained.
"""

from typing import Any, Literal

from anyformer.modeling.rules.legality import POOLER_TYPES
from anyformer.modeling.rules.parts import ROPE_TYPES

from ..errors import UserError, did_you_mean
from .checks import check_rope_keys
from .introspection import bounds_of
from .types import convert, within_bounds

# The keys that each kind of scaling needs; rope_theta is the checkpoint's unless it is set.
ROPE_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


def checkpoint_field(name: str, value: Any) -> Any:
    """Return the checked value of the field `model.NAME` beside `model.name_or_path`, or raise UserError."""
    where = f"model.{name}"
    if name == "max_position_embeddings":
        return within_bounds(convert(value, int, where), bounds_of(at_least=1), where)
    if name == "rope_parameters":
        return _rope_parameters(convert(value, dict, where), where)
    if name == "pooler_type":
        return convert(value, Literal[tuple(POOLER_TYPES)], where)
    if "drop" not in name:  # dropout depends on the training, not on the weights
        raise UserError(
            f"{where} cannot be set with model.name_or_path; a checkpoint has its own (dropout, pooler_type, "
            f"rope_parameters and max_position_embeddings can be set)"
        )
    return convert(value, float, where)


def _rope_parameters(value: dict, where: str) -> dict:
    check_rope_keys(value, where)
    rope_type = convert(value.get("rope_type"), Literal[tuple(ROPE_TYPES)], f"{where}.rope_type")
    missing = [key for key in ROPE_NEEDS.get(rope_type, ()) if key not in value]
    if missing:
        raise UserError(f"{where}.{missing[0]} is not set; rope_type={rope_type!r} needs {' and '.join(missing)}")
    return value


def with_fields(config, fields: dict[str, Any], name: str):
    """The config of the checkpoint `name` with a recipe's `fields` in it; a new object where positions change.

    Raises UserError: the checkpoint has no such dropout or pooling, or positions that cannot be stretched.
    """
    fields = dict(fields)
    positions = {key: fields.pop(key) for key in ("rope_parameters", "max_position_embeddings") if key in fields}
    for field, value in fields.items():
        if not hasattr(config, field):
            known = [known for known in config.to_dict() if "drop" in known]
            raise UserError(f"model.{field}: {name} has no such setting{did_you_mean(field, known, 'model.')}")
        if field == "pooler_type" and hasattr(config, "patch_size") and value != config.pooler_type:
            raise UserError(
                f"model.{field}={value!r}: {name} was trained with {config.pooler_type!r}, which decides whether its "
                f"weights hold a class token; leave model.{field} out"
            )
        setattr(config, field, value)
    if not positions:
        return config
    field = next(iter(positions))
    old = getattr(config, "rope_parameters", None)
    if not old or getattr(config, "position_encoding", "rotary") != "rotary":
        raise UserError(f"model.{field}: {name} has no rotary positions, which alone can be stretched")
    if "rope_parameters" in positions:
        if "rope_type" not in old:
            raise UserError(f"model.rope_parameters: {name} has other ones for each type of layer; keep them")
        inherited = {key: old[key] for key in ("rope_theta", "partial_rotary_factor") if key in old}
        positions["rope_parameters"] = inherited | positions["rope_parameters"]
    try:
        return type(config).from_dict(config.to_dict() | positions)
    except (ValueError, KeyError) as error:
        raise UserError(f"model.{field}: {' '.join(str(error).split())}") from error
