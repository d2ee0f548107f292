"""What a model card says of the objective or task that a model learned."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ObjectiveFacts:
    """An objective in the words of a model card.

    hub_task: the Hub's name of the task; None: as the model's class says.
    loss_unit: what the loss counts.
    samples_are_answers: a sample answers its prompt; otherwise it continues it, and begins with it.
    picture: file in the run's folder that is shown as the sample.
    """

    hub_task: str | None = None
    loss_unit: str = "nats per token"
    samples_are_answers: bool = False
    picture: str | None = None


_OBJECTIVES = {
    "causal": ObjectiveFacts("text-generation"),
    "masked": ObjectiveFacts("fill-mask", loss_unit="nats per masked token"),
    "span_corruption": ObjectiveFacts(),
    "pixels": ObjectiveFacts(loss_unit="nats per pixel", picture="completions.png"),
    "masked_image": ObjectiveFacts("image-feature-extraction", loss_unit="mean distance per hidden pixel value"),
    "sequence_classification": ObjectiveFacts("text-classification", loss_unit="nats per example"),
    "image_classification": ObjectiveFacts("image-classification", loss_unit="nats per example"),
    "translation": ObjectiveFacts("translation", samples_are_answers=True),
}


def objective_facts(recipe: dict[str, Any]) -> ObjectiveFacts:
    """The facts of a recipe's objective or task; the defaults for a recipe that names none we know."""
    section = recipe.get("task") or recipe.get("objective")
    name = section.get("name") if isinstance(section, dict) else None
    return _OBJECTIVES.get(name, ObjectiveFacts())
