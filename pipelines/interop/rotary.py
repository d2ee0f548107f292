"""Rotary parameters: one set per layer type in ours; one for all layers, or one per type, in native configs."""

from typing import Any

from ..errors import UserError
from .architecture_map import Computed


def flat_rope(config) -> dict[str, Any] | None:
    """The rotary parameters of our config as one dict; None if its layer types have different ones."""
    parameters = config.rope_parameters
    nested = [parameters[name] for name in dict.fromkeys(config.layer_types) if name in parameters]
    first, *others = nested or [parameters]
    if any(other != first for other in others):
        return None
    return {key: value for key, value in first.items() if (key, value) != ("partial_rotary_factor", 1.0)}


def refuse_part(native, parameters: dict[str, Any], field: str = "rope_parameters") -> None:
    """Remove `partial_rotary_factor` from parameters; raise UserError if it is not 1."""
    part = parameters.pop("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise UserError(
            f"{native.model_type} with {field}.partial_rotary_factor={part} has no anyformer twin: "
            f"transformers' class does not rotate a part; 1.0 has one"
        )


def _read(native) -> dict[str, Any]:
    parameters = dict(native.rope_parameters)
    refuse_part(native, parameters)
    return {"rope_parameters": parameters}


def _write(ours) -> dict[str, Any]:
    flat = flat_rope(ours) or {}
    return {"rope_parameters": {key: value for key, value in flat.items() if key != "partial_rotary_factor"}}


ROTARY = Computed(_read, _write)
ROTARY_WITH_PART = Computed(
    lambda native: {"rope_parameters": dict(native.rope_parameters)},
    # The factor is written even if it is 1: GPT-NeoX's default is a quarter.
    lambda ours: {"rope_parameters": {"partial_rotary_factor": 1.0, **(flat_rope(ours) or {})}},
)


def _write_nested(ours) -> dict[str, Any]:
    """One set for each of the two native layer types; a type that no layer uses gets the set of the other."""
    parameters = ours.rope_parameters
    flat = {key: value for key, value in parameters.items() if not isinstance(value, dict)}
    used = {name: dict(parameters.get(name, flat)) for name in dict.fromkeys(ours.layer_types)}
    first = next(iter(used.values()))
    return {"rope_parameters": {name: used.get(name, dict(first)) for name in ("sliding_attention", "full_attention")}}


def _read_nested(native) -> dict[str, Any]:
    return {"rope_parameters": {name: dict(native.rope_parameters[name]) for name in dict.fromkeys(native.layer_types)}}


NESTED_ROTARY = Computed(_read_nested, _write_nested)
