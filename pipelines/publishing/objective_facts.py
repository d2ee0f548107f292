"""What a model card says of the objective or task that a model learned: attributes of its Objective class."""

from types import SimpleNamespace
from typing import Any

from ..plugins import OBJECTIVES

# The most common values, for a recipe that names no registered objective.
UNKNOWN = SimpleNamespace(hub_task=None, loss_unit="nats per token", samples_are_answers=False, picture=None)
UNKNOWN.hub_tags = UNKNOWN.unused_weights = ()
UNKNOWN.example_of_use = lambda settings: ("your text", {})


def objective_facts(recipe: dict[str, Any]) -> Any:
    """The class of a saved recipe's objective or task, whose attributes are the facts; else UNKNOWN."""
    section = recipe.get("task") or recipe.get("objective")
    return (OBJECTIVES.get(section.get("name")) if isinstance(section, dict) else None) or UNKNOWN
