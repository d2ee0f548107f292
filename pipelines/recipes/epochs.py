"""Settings in passes over the data, such as `every_steps: 0.5 epochs`, and the steps that they are of known data."""

import re
from dataclasses import replace

from ..errors import UserError
from ..words import counted
from .schema import Recipe
from .types import show

WORDS = re.compile(r"(?:(\d+(?:\.\d+)?)\s+)?epochs?")


def epochs_of(text: str) -> float | None:
    """2.0 of `2 epochs`, 1.0 of `epoch`; None for another text."""
    match = WORDS.fullmatch(text)
    return (float(match[1] or 1) or None) if match else None


def in_steps(recipe: Recipe, per_epoch: int | None) -> Recipe:
    """The recipe with steps and validations in place of epochs, and in `chosen` why; itself where it names no epochs.

    per_epoch: optimizer steps of a pass over the data. Raises UserError where it is None, not known, and asked for.
    """
    training, evaluation, chosen = recipe.training, recipe.evaluation, dict(recipe.chosen)

    def steps(value, setting: str, each: int = 1, noun: str = "step"):
        if not isinstance(value, str):
            return value
        if per_epoch is None:
            raise UserError(
                f"{setting}={show(value)} is of passes over the data, and a stream has no known length; set a number "
                f"of {noun}s"
            )
        chosen[setting] = f"{value}, each of {counted(per_epoch, 'step')}"
        return max(1, round(epochs_of(value) * per_epoch / each))

    save = steps(training.save_steps, "training.save_steps")
    every = steps(evaluation.every_steps, "evaluation.every_steps")
    patience = steps(evaluation.patience, "evaluation.patience", each=every or 1, noun="validation")
    return replace(
        recipe,
        training=replace(training, save_steps=save),
        evaluation=replace(evaluation, every_steps=every, patience=patience),
        chosen=chosen,
    )
