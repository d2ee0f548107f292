"""What a recipe says itself: a composed recipe spells out every default, of which most readers need none."""

from dataclasses import asdict
from typing import Any

from ..errors import UserError
from ..plugins import OBJECTIVES
from .compose import load_preset
from .schema import LEARNED, Recipe


def own_settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of a composed recipe, as Recipe.to_dict gives it, that its preset and the defaults do not say.

    Composed again they give the same recipe. Sections with nothing of their own are left out.
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
        elif section == "model":
            known |= _of_preset(settings.get("preset"))
        elif section == "evaluation":
            known |= _metrics(recipe)
        kept = {name: value for name, value in settings.items() if name not in known or value != known[name]}
        own |= {section: kept} if kept else {}
    return {name: own[name] for name in recipe if name in own}


def _of_preset(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        family, fields = load_preset(name)
    except UserError:  # of another version
        return {}
    return {"family": family, **fields}


def _metrics(recipe: dict[str, Any]) -> dict[str, Any]:
    learned = recipe.get("task") or recipe.get("objective") or {}
    cls = OBJECTIVES.get(learned.get("name"))
    return {} if cls is None else {"metrics": list(cls.default_metrics)}
