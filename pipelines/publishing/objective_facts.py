"""What a model card says of the objective or task that a model learned: attributes of its Objective class."""

from types import SimpleNamespace
from typing import Any

from ..plugins import OBJECTIVES
from ..recipes.row_words import Words

# The most common values, for a recipe that names no registered objective.
UNKNOWN = SimpleNamespace(words=Words(), unused_weights=())


def objective_facts(recipe: dict[str, Any]) -> Any:
    """The class of a saved recipe's objective or task, whose attributes are the facts; else UNKNOWN."""
    section = recipe.get("task") or recipe.get("objective")
    return (OBJECTIVES.get(section.get("name")) if isinstance(section, dict) else None) or UNKNOWN
