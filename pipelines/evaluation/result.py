"""The result of measuring a saved model: facts for a file, and the line above its table."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..objectives.prepare import cache_of
from ..recipes.schema import Recipe
from ..reporting.interpret import between
from ..storage.record import Record, package_versions
from ..words import human_time, short_metric


@dataclass(frozen=True)
class Began:
    """The beginning of a measurement. at: by time.time(). record: of the model and the data before they were read."""

    at: float
    record: Record
    settings: dict[str, Any]

    @classmethod
    def now(cls, recipe: Recipe, settings: dict | None = None) -> "Began":
        """A measurement that begins now. settings: those that are not in the recipe."""
        cache_of(recipe)  # where the hashes of the data are kept
        known = recipe.to_dict() | {"settings": settings}
        return cls(time.time(), Record.now(recipe.model.name_or_path, known), known)

    def facts(self, recipe: Recipe) -> dict[str, Any]:
        """The seconds since then and the record, for a result's JSON.

        Raises UserError where the model or the data has been changed meanwhile.
        """
        self.record.check_still(recipe.model.name_or_path, "MODEL", self.settings)
        return {"seconds": round(time.time() - self.at, 1)} | self.record.facts()


class Result:
    """The result of measuring a model.

    Attributes: model, task, data, seconds, versions, and those in `facts`. answers: one for each example, which are
    written to a separate file. asked: a function that reads the examples (place, columns) once more, in the order by
    which answers number them.

    Args:
        began: made before anything was read.

    Raises UserError where the model or the data has been changed meanwhile.
    """

    seconds: float
    answers: list[dict]
    asked: Callable[[], Iterator[tuple[str, dict]]]

    def __init__(self, recipe: Recipe, data: str, began: Began, answers: list[dict], /, **facts: Any):
        self.model, self.task, self.data, self.answers = recipe.model.name_or_path, recipe.name, data, answers
        self.versions = package_versions()
        vars(self).update(began.facts(recipe), **facts)

    def facts(self) -> dict:
        """Everything but the single answers and examples, as plain data for JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("answers", "asked")}

    def head(self, what: str, how: str = "") -> str:
        """The line above the table: `runs/mine on sst2: 872 examples of sst2 (test), 0:12`. what: 872 examples."""
        split = f" ({self.split})" if hasattr(self, "split") else ""
        return f"{self.model} on {self.task}: {what} of {self.data}{split}{how}, {human_time(self.seconds)}"


def with_bounds(value: float, bounds: dict | None) -> str:
    """A metric as it is printed, with its 95 % interval where it has one."""
    return short_metric(value) + (f"  {between(bounds['low'], bounds['high'])}" if bounds else "")
