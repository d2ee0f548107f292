"""The result of measuring a saved model: facts for a file, and the line above its table."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..recipes.schema import Recipe
from ..reporting.interpret import between
from ..storage.record import Record, package_versions
from ..words import human_time, short_metric


class Result:
    """The result of measuring a model.

    Attributes: model, task, data, seconds, versions, and those in `facts`. answers: one for each example, which are
    written to a separate file. asked: a function that reads the examples (place, columns) once more, in the order by
    which answers number them.

    Args:
        began: by time.time(). weights: of the model, as weights_identity gives them before it is read.

    Raises UserError where the model has been changed meanwhile.
    """

    answers: list[dict]
    asked: Callable[[], Iterator[tuple[str, dict]]]

    def __init__(self, recipe: Recipe, data: str, began: float, weights: list, answers: list[dict], /, **facts: Any):
        self.model, self.task, self.data, self.answers = recipe.model.name_or_path, recipe.name, data, answers
        self.seconds, self.versions = round(time.time() - began, 1), package_versions()
        vars(self).update(record_of(recipe, weights, facts.get("settings")), **facts)

    def facts(self) -> dict:
        """Everything but the single answers and examples, as plain data for JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("answers", "asked")}

    def head(self, what: str, how: str = "") -> str:
        """The line above the table: `runs/mine on sst2: 872 examples of sst2 (test), 0:12`. what: 872 examples."""
        split = f" ({self.split})" if hasattr(self, "split") else ""
        return f"{self.model} on {self.task}: {what} of {self.data}{split}{how}, {human_time(self.seconds)}"


def record_of(recipe: Recipe, weights: list, settings: dict | None = None) -> dict[str, Any]:
    """The entry of a result that says what it is of. settings: those of a measurement that are not in the recipe.

    Raises UserError where the model is no longer of these weights.
    """
    record = replace(Record.now(None, recipe.to_dict() | {"settings": settings}), weights=weights)
    record.check_still(recipe.model.name_or_path, "MODEL")
    return record.facts()


def with_bounds(value: float, bounds: dict | None) -> str:
    """A metric as it is printed, with its 95 % interval where it has one."""
    return short_metric(value) + (f"  {between(bounds['low'], bounds['high'])}" if bounds else "")
