"""`anyformer evaluate A B TASK`: two models on the same examples, and whether one is better than the other."""

from dataclasses import dataclass

from ..errors import UserError
from ..metrics.significance import differences
from ..plugins import METRICS
from ..recipes.schema import Recipe
from ..reporting.console import print_table
from ..reporting.interpret import between
from ..words import human_time, short_metric
from .evaluate import Evaluation, measure_all, prepare_evaluation
from .result import Asked, Measured, metric_cells


@dataclass
class ModelComparison(Measured):
    """Two models measured on the same examples.

    differences: what metrics/significance.py's `differences` returns; empty where metrics are not per example.
    """

    first: Evaluation
    second: Evaluation
    differences: dict[str, dict]

    def facts(self) -> dict:
        """Everything as plain data, for JSON."""
        results = [self.first, self.second]
        return {
            "models": [result.model for result in results],
            "task": self.first.task,
            "split": self.first.split,
            "differences": self.differences,
            "results": [result.facts() for result in results],
        }

    @property
    def answers(self) -> list[dict]:
        """{"row", "predictions" of both, "reference"} of each example, and its "part" where there are several."""
        return [
            {name: value for name, value in a.items() if name not in ("prediction", "reference")}
            | {"predictions": [a["prediction"], b["prediction"]], "reference": a["reference"]}
            for a, b in zip(self.first.answers, self.second.answers)
        ]

    @property
    def asked(self) -> Asked | None:
        return self.first.asked

    def show(self) -> None:
        """Print one table: each metric of both models, the difference, and how certain it is."""
        a, b = self.first, self.second
        took = human_time(a.seconds + b.seconds)
        of_both = zip(a.metrics, metric_cells(a.metrics, a.intervals), metric_cells(b.metrics, b.intervals))
        console = print_table(
            f"{a.task}: {a.examples:,} {a.rows} of {a.data} ({a.split}), {took}\nA: {a.model}\nB: {b.model}",
            ["metric", "A", "B", "B - A", "p", "test"],
            [[*of_a, *of_b[1:], *self._difference(name)] for name, of_a, of_b in of_both],
            numbers=slice(1, 5),
        )
        for name, row in self.differences.items():
            if "first_alone" in row:
                console.print(
                    f"{name.replace('_', ' ')}: A alone is right in {row['first_alone']:,}, B alone in "
                    f"{row['second_alone']:,} {a.rows}",
                    markup=False,
                )

    def _difference(self, name: str) -> list[str]:
        """The cells of a metric's difference, its p and the test."""
        row = self.differences.get(name, {})
        difference = self.second.metrics[name] - self.first.metrics[name]
        bounds = f"  {between(row['low'], row['high'])}" if "low" in row else ""
        return [
            f"{'+' if difference > 0 else ''}{short_metric(difference)}{bounds}",
            f"{row['p']:.4f}" if "p" in row else "",
            row.get("test", ""),
        ]


def compare_models(first: Recipe, second: Recipe, split: str, max_examples: int | None = None) -> ModelComparison:
    """Measure the checkpoints of two recipes that differ in nothing else.

    Raises UserError: as evaluate_model, or where the models number the classes differently or read other examples.
    """
    pair = [prepare_evaluation(recipe, split, max_examples) for recipe in (first, second)]
    places = [each.recipe.model.name_or_path for each in pair]
    classes = [list(each.data.learns().config_fields().get("id2label", {}).values()) for each in pair]
    if classes[0] != classes[1] and sorted(classes[0]) == sorted(classes[1]):
        raise UserError(
            f"MODEL={places[0]} numbers the classes {', '.join(classes[0])}, and MODEL={places[1]} "
            f"{', '.join(classes[1])}; measure each by itself"
        )
    results = measure_all(pair)
    all_differences: dict[str, dict] = {}
    compared = list(zip(*(result.compared for result in results)))
    if any(each.rows is None for both in compared for each in both):
        return ModelComparison(*results, {})
    for a, b in compared:
        # Rewards of rejected answers are references of each model's own, and so differ.
        of_models = all(METRICS[name].compares == "rewards" for name in a.metrics)
        if a.rows != b.rows or not (of_models or a.references == b.references):
            raise UserError(
                f"MODEL={places[0]} and MODEL={places[1]} do not answer the same questions in the same way (their "
                f"classes have other numbers, or their rows hold other examples); measure each by itself"
            )
        all_differences |= differences(a, b, first.evaluation.bootstrap, first.training.seed)
    return ModelComparison(*results, all_differences)
