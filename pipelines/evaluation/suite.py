"""Suites: one model on several tasks, in one table; and `anyformer.EvaluationSuite`."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evaluate

from ..errors import UserError
from ..recipes.schema import Recipe
from ..recipes.suite_file import Suite, read_suite
from ..reporting.console import print_table
from ..words import human_time
from .evaluate import Evaluation, measure_all, prepare_evaluation
from .request import recipes_of_suite
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

    recipes: task -> (recipe with the model in it, split, most examples), as recipes_of_suite gives them.

    Raises UserError: as evaluate_model, for any of the tasks, before anything is measured.
    """
    started = time.time()
    results = measure_all([prepare_evaluation(*request) for request in recipes.values()])
    return SuiteResult(suite.name, model, dict(zip(recipes, results)), round(time.time() - started, 1))


class EvaluationSuite(evaluate.EvaluationSuite):
    """A suite in Python, as evaluate's class but without the Hub: `EvaluationSuite("sentiment").run(model)`.

    Args:
        name: a YAML file, or the name of a shipped suite.

    Raises:
        UserError: no such suite, or a mistake in it.
    """

    def __init__(self, name: str | Path):
        self._suite = read_suite(str(name))
        super().__init__(self._suite.name)
        self.suite = self._suite.tasks

    @staticmethod
    def load(path: str | Path, *args, **kwargs) -> "EvaluationSuite":
        """The suite of a YAML file or a shipped name; nothing is downloaded."""
        return EvaluationSuite(path)

    def run(self, model_or_pipeline: Any, *, trust_remote_code: bool = False) -> list[dict[str, Any]]:
        """Measure a model: {"task_name", its metrics, "intervals", "examples", "split"} of each task, in their order.

        model_or_pipeline: folder of a run or a model, a Hub repository, or a pipeline, whose model and tokenizer (or
        image processor) are measured; a temporary folder holds their copy meanwhile.

        Raises:
            UserError: as `anyformer evaluate MODEL SUITE`, before anything is measured; or a model without a tokenizer.
        """
        from transformers import Pipeline

        if isinstance(model_or_pipeline, Pipeline):
            with tempfile.TemporaryDirectory(prefix="anyformer-suite-") as folder:
                model_or_pipeline.save_pretrained(folder)
                return self.run(folder, trust_remote_code=trust_remote_code)
        if not isinstance(model_or_pipeline, (str, Path)):
            kind = type(model_or_pipeline).__name__
            raise UserError(f"model_or_pipeline={kind} is neither a folder, a Hub repository nor a pipeline")
        model = str(model_or_pipeline)
        recipes = recipes_of_suite(self._suite, model, trust_remote_code=trust_remote_code)
        result = evaluate_suite(self._suite, model, recipes)
        return [
            {"task_name": name, **of_task.metrics}
            | {key: getattr(of_task, key) for key in ("intervals", "examples", "split")}
            for name, of_task in result.results.items()
        ]
