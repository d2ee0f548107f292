"""A run's recipe for people: what it sets itself, where it differs from the shipped recipe, and all the rest."""

import json
from functools import cache
from typing import Any

from ..errors import UserError
from ..recipes.compose import load_recipe
from ..recipes.differences import flat_settings
from ..recipes.own_settings import own_settings
from ..recipes.recipe_files import shipped

MISSING = object()
OF_THE_PLACE = ("training.output_dir", "name", "description")  # which say nothing of what is trained


def in_words(value: Any) -> str:
    """A setting's value as a recipe has it."""
    if value is MISSING or value is None:
        return "-" if value is None else "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@cache  # a run's page is written again and again
def shipped_settings(name: str) -> dict[str, Any] | None:
    """The settings of the shipped recipe of this name; None where none is shipped, or its objective is not known."""
    if name not in shipped("recipes"):
        return None
    try:
        return flat_settings(load_recipe(name).to_dict())
    except UserError:
        return None  # of a plug-in that is not loaded here


def settings_table(recipe: dict[str, Any]) -> dict[str, Any]:
    """{"shipped": its name or None, "sections": [{"name", "rows"}], "own", "changed": how many}.

    A row: {"name", "value", "kind", "before"}. kind: "changed" (the shipped recipe says `before`), "own" (neither the
    preset nor a default says it) or "default".
    """
    before, said = shipped_settings(str(recipe.get("name"))), flat_settings(recipe)
    own = flat_settings(own_settings(recipe))
    sections: dict[str, list[dict]] = {}
    for path, value in said.items():
        section, _, name = path.partition(".")
        if not name and (section in ("name", "description") or value is None):
            continue
        kind = "own" if is_own(path, own) else "default"
        there = before.get(path, MISSING) if before is not None else value
        if path not in OF_THE_PLACE and there != value and not (there is MISSING and kind == "default"):
            kind = "changed"
        row = {"name": name or section, "value": in_words(value), "kind": kind, "before": in_words(there)}
        sections.setdefault(section, []).append(row)
    for path, value in (before or {}).items():  # what the run has taken out
        section, _, name = path.partition(".")
        if name and path not in said and value not in (None, [], {}):
            row = {"name": name, "value": in_words(MISSING), "kind": "changed", "before": in_words(value)}
            sections.setdefault(section, []).append(row)
    rows = [row for found in sections.values() for row in found]
    return {
        "shipped": recipe.get("name") if before is not None else None,
        "preset": (recipe.get("model") or {}).get("preset"),
        "sections": [{"name": name, "rows": found} for name, found in sections.items() if found],
        "own": sum(row["kind"] == "own" for row in rows),
        "changed": sum(row["kind"] == "changed" for row in rows),
    }


def is_own(path: str, own: dict[str, Any]) -> bool:
    """Whether a setting, or the mapping that it is in, is one that the recipe says itself."""
    return any(path == name or path.startswith(f"{name}.") or name.startswith(f"{path}.") for name in own)
