"""A recipe's plain data: flattened, and without the defaults that a composed recipe spells out."""

from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..errors import UserError
from ..plugins import OBJECTIVES
from .compose import load_preset
from .schema import LEARNED, Recipe


def flat_settings(value: Any, path: str = "") -> dict[str, Any]:
    """A recipe's plain data flattened: {"training.learning_rate": 0.003, ...}."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    flat = {}
    for key, item in value.items():
        flat |= flat_settings(item, f"{path}.{key}" if path else str(key))
    return flat


def own_settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of a composed recipe (Recipe.to_dict) that differ from its preset and from the defaults.

    Composing them again gives the same recipe. Sections without such settings are left out.
    """
    defaults = Recipe().to_dict()
    own = {name: value for name, value in recipe.items() if not isinstance(value, dict) and value != defaults.get(name)}
    for section, settings in recipe.items():
        if not isinstance(settings, dict):
            continue
        known = defaults.get(section) or {}
        if section in LEARNED:
            cls = OBJECTIVES.get(settings.get("name"))
            known = {} if cls is None else asdict(cls.Settings())
            known.pop("name", None)
        elif section == "model" and settings.get("preset") is not None:
            with suppress(UserError):  # the preset of another version
                family, fields = load_preset(settings["preset"])
                known |= {"family": family, **fields}
        elif section == "evaluation":
            cls = OBJECTIVES.get((recipe.get("task") or recipe.get("objective") or {}).get("name"))
            known |= {} if cls is None else {"metrics": list(cls.default_metrics)}
        changed = {name: value for name, value in settings.items() if name not in known or value != known[name]}
        own |= {section: changed} if changed else {}
    return {name: own[name] for name in recipe if name in own}
