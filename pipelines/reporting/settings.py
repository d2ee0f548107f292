"""A run's recipe for people: the settings it gives, those that differ from the shipped recipe, and all the rest."""

import json
from functools import cache
from typing import Any

from ..errors import UserError
from ..recipes.compose import load_recipe
from ..recipes.own_settings import flat_settings, own_settings
from ..recipes.recipe_files import shipped

MISSING = object()
OF_THE_PLACE = ("training.output_dir", "name", "description")  # they do not affect what is trained


def in_words(value: Any) -> str:
    """A setting's value as a recipe has it."""
    if value is MISSING or value is None:
        return "-" if value is None else "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@cache  # a run's page is rewritten many times
def shipped_settings(name: str) -> dict[str, Any] | None:
    """The settings of the shipped recipe of this name; None where none is shipped, or its objective is not known."""
    if name not in shipped("recipes"):
        return None
    try:
        return flat_settings(load_recipe(name).to_dict())
    except UserError:
        return None  # of a plug-in that is not loaded here


def settings_table(recipe: dict[str, Any]) -> dict[str, Any]:
    """{"shipped": its name or None, "preset", "sections": [{"name", "rows"}], "own", "changed": how many}.

    A row: {"name", "value", "kind", "before"}. kind: "changed" (the shipped recipe says `before`), "own" (neither the
    preset nor a default says it) or "default".
    """
    before, settings = shipped_settings(str(recipe.get("name"))), flat_settings(recipe)
    own_paths = flat_settings(own_settings(recipe))
    sections: dict[str, list[dict]] = {}
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if not name and (section in ("name", "description") or value is None):
            continue
        # The recipe itself gives this setting, or the mapping that it is in, or something within it.
        is_own = any(path == own or path.startswith(f"{own}.") or own.startswith(f"{path}.") for own in own_paths)
        kind = "own" if is_own else "default"
        shipped_value = before.get(path, MISSING) if before is not None else value
        if path not in OF_THE_PLACE and shipped_value != value and not (shipped_value is MISSING and kind == "default"):
            kind = "changed"
        row = {"name": name or section, "value": in_words(value), "kind": kind, "before": in_words(shipped_value)}
        sections.setdefault(section, []).append(row)
    for path, value in (before or {}).items():  # settings that the run's recipe does not have
        section, _, name = path.partition(".")
        if name and path not in settings and value not in (None, [], {}):
            row = {"name": name, "value": in_words(MISSING), "kind": "changed", "before": in_words(value)}
            sections.setdefault(section, []).append(row)
    rows = [row for of_section in sections.values() for row in of_section]
    return {
        "shipped": recipe.get("name") if before is not None else None,
        "preset": (recipe.get("model") or {}).get("preset"),
        "sections": [{"name": name, "rows": of_section} for name, of_section in sections.items() if of_section],
        "own": sum(row["kind"] == "own" for row in rows),
        "changed": sum(row["kind"] == "changed" for row in rows),
    }
