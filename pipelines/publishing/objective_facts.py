"""What a model card says of the objective or task that a model learned: the words its Objective has for itself."""

from dataclasses import dataclass, field
from typing import Any

from ..plugins import OBJECTIVES


@dataclass(frozen=True)
class ObjectiveFacts:
    """What a saved recipe's objective says of the model: class attributes of Objective, and an example of use."""

    hub_task: str | None = None
    loss_unit: str = "nats per token"
    samples_are_answers: bool = False
    picture: str | None = None
    hub_tags: tuple[str, ...] = ()
    unused_weights: tuple[str, ...] = ()
    example: Any = "your text"  # that transformers' pipeline is called with, and how
    options: dict[str, Any] = field(default_factory=dict)


def objective_facts(recipe: dict[str, Any]) -> ObjectiveFacts:
    """The facts of a saved recipe's objective or task; the defaults where it names none that is registered."""
    section = recipe.get("task") or recipe.get("objective")
    cls = OBJECTIVES.get(section.get("name")) if isinstance(section, dict) else None
    if cls is None:
        return ObjectiveFacts()
    names = ("hub_task", "loss_unit", "samples_are_answers", "picture", "hub_tags", "unused_weights")
    example, options = cls.example_of_use(section)
    return ObjectiveFacts(**{name: getattr(cls, name) for name in names}, example=example, options=options)
