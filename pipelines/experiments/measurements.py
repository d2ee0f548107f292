"""A sweep that trains nothing: one saved model, measured with every combination of some settings."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage.record import Record
from .samplers import Combination
from .sweep import Run, SweepRuns


@dataclass
class Measurement(Run):
    """A saved model measured with some settings: a JSON file, named as the folder of a run would be.

    expected: the limit on examples, and the record of what is measured. A file that agrees with both is not made again.
    """

    expected: tuple[int | None, Record] = (None, Record())

    @property
    def file(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.json"

    def overrides(self) -> list[str]:
        """The settings of the combination, and where the result is written."""
        return [*self.combination.settings, "--output", str(self.file)]

    def is_known(self) -> bool:
        """Whether the file holds the result of this model with these settings."""
        most, now = self.expected
        try:
            result = json.loads(self.file.read_text(encoding="utf-8"))
            return result["max_examples"] == most and Record.of(result).differs_from(now) is None
        except (OSError, ValueError, KeyError, TypeError):
            return False  # missing or damaged: it is measured

    def read(self) -> None:
        """Read what the command has written."""
        result = json.loads(self.file.read_text(encoding="utf-8"))
        self.state, self.metrics = "finished", result["metrics"]
        self.facts = {"examples": result["examples"], "wall_seconds": result["seconds"]}


class SweepMeasurements(SweepRuns):
    """The measurements of a sweep.

    Arguments as of SweepRuns, and load: settings -> the recipe with which the model is measured.
    """

    noun = "measurement"

    def __init__(self, *args, load: Callable, **kwargs):
        super().__init__(*args, **kwargs)
        self.load = load

    def metric_asked_for(self) -> tuple[str, str, str]:
        """As in SweepRuns, but without a split: `evaluate` measures one split and does not put it before a metric."""
        name = self.sweep.settings.metric or next(iter(self.recipe.evaluation.metrics), "loss")
        return name, name, name

    def runs_of(self, combination: Combination) -> list[Run]:
        """One measurement for the combination, as no seed would change it."""
        recipe = self.load([*self.sweep.fixed, *combination.settings]).to_dict()
        now = Record.now(self.sweep.settings.evaluate, recipe | {"settings": None})
        expected = self.sweep.settings.max_examples, now
        return [Measurement(combination, None, self.folder / combination.name, expected=expected)]

    def question(self) -> dict[str, Any]:
        return super().question() | {"evaluate": self.sweep.settings.evaluate}

    def measure(self, at_once: int) -> int:
        """Do nothing: there are no trained runs to measure."""
        return 0

    def compare(self) -> None:
        """Do nothing: the table is the comparison."""
