"""A sweep that trains nothing: one saved model, measured with every combination of some settings."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage.model_folder import files_of_answers
from .samplers import Combination
from .sweep import Run, SweepRuns


@dataclass
class Measurement(Run):
    """A saved model measured with some settings: a JSON file, named as the folder of a run would be.

    expected: (what its file says of the measurement: the recipe and the limit on examples; when the model was written).
    A file that agrees with both is not made again.
    """

    expected: tuple[dict[str, Any], int] = ({}, 0)

    @property
    def file(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.json"

    def overrides(self) -> list[str]:
        """The settings of the combination, and where the result is written."""
        return [*self.combination.settings, "--output", str(self.file)]

    def is_known(self) -> bool:
        """Whether the file holds the result of this model with these settings."""
        facts, written = self.expected
        if not self.file.is_file() or self.file.stat().st_mtime_ns < written:
            return False
        try:
            result = json.loads(self.file.read_text(encoding="utf-8"))
            return {name: result[name] for name in facts} == json.loads(json.dumps(facts))
        except (ValueError, KeyError, TypeError):
            return False  # damaged: it is measured again

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
        files = files_of_answers(Path(self.sweep.settings.evaluate).expanduser())
        self.written = max((path.stat().st_mtime_ns for path in files), default=0)

    def metric_asked_for(self) -> tuple[str, str, str]:
        """As in SweepRuns, but without a split: `evaluate` measures one split and does not put it before a metric."""
        name = self.sweep.settings.metric or next(iter(self.recipe.evaluation.metrics), "loss")
        return name, name, name

    def runs_of(self, combination: Combination) -> list[Run]:
        """One measurement for the combination, as no seed would change it."""
        recipe = self.load([*self.sweep.fixed, *combination.settings]).to_dict()
        expected = {"recipe": recipe, "max_examples": self.sweep.settings.max_examples}, self.written
        return [Measurement(combination, None, self.folder / combination.name, expected=expected)]

    def question(self) -> dict[str, Any]:
        return super().question() | {"evaluate": self.sweep.settings.evaluate}

    def measure(self, at_once: int) -> int:
        """Do nothing: there are no trained runs to measure."""
        return 0

    def compare(self) -> None:
        """Do nothing: the table is the comparison."""
