"""Suites: one model on several tasks, in one table."""

import time
from dataclasses import dataclass
from typing import Any

from ..recipes.schema import Recipe
from ..recipes.suite_file import Suite
from ..reporting.console import print_table
from ..words import human_time
from .evaluate import Evaluation, measure_all, prepare_evaluation
from .result import Measured, metric_cells


@dataclass
class SuiteResult(Measured):
    """Every task of a suite, measured. model: as the user named it; `runs/{task}` where each task has its own model."""

    suite: str
    model: str
    results: dict[str, Evaluation]
    seconds: float

    def facts(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        tasks = {name: result.facts() for name, result in self.results.items()}
        return {"suite": self.suite, "model": self.model, "seconds": self.seconds, "tasks": tasks}

    def show(self) -> None:
        """Print one table: a row for each metric of each task."""
        rows = []
        for task, of_task in self.results.items():
            about = [f"{of_task.examples:,}", f"{of_task.data} ({of_task.split})"]
            for number, cells in enumerate(metric_cells(of_task.metrics, of_task.intervals)):
                rows.append(["" if number else task, *cells, *(["", ""] if number else about)])
        title = f"{self.model} on {self.suite}, {human_time(self.seconds)}"
        print_table(title, ["task", "metric", "value", "examples", "data"], rows, numbers=slice(2, 4))


def evaluate_suite(suite: Suite, model: str, recipes: dict[str, tuple[Recipe, str, int | None]]) -> SuiteResult:
    """Measure a model on the tasks of a suite, after all of them have been checked.

    Args:
        recipes: task -> (recipe with the model in it, split, most examples), as recipes_of_suite gives them.

    Raises:
        UserError: as evaluate_model, for any of the tasks, before anything is measured.
    """
    started = time.time()
    results = measure_all([prepare_evaluation(*request) for request in recipes.values()])
    return SuiteResult(suite.name, model, dict(zip(recipes, results)), round(time.time() - started, 1))
