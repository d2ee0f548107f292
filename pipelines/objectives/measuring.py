"""The part of the Objective interface that needs a model: metrics, samples, answers to rows without labels."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plugins import METRICS

OF_PART = "loss_"  # prefix of the names of the parts' losses, and of no other metric

if TYPE_CHECKING:
    from ..data.rows import Rows
    from .finished_model import FinishedModel


class Measuring:
    """The second half of the interface of an Objective (base.py), which is called once there is a model."""

    def adopt(self, config, source: Any) -> None:
        """Take from a trained model's config what the recipe leaves open, before `prepare`. Raises UserError."""

    keeps_scores = False  # whether predictions hold the classes' probabilities even if no metric needs them

    def scorer(self) -> Any | None:
        """The object that measures an evaluation pass, by predictions(logits, labels) and compute_metrics(predictions):
        the objective itself if it has these methods. None: only the loss is measured."""
        return self if hasattr(self, "predictions") else None

    def compare(self, *compared: Any, names: list[str] | None = None, rows: list | None = None) -> dict[str, float]:
        """{metric: its value} for predictions, references and what else metrics.compute_metrics takes."""
        from ..metrics import compute_metrics

        how = {"rows": rows, "tokenize": self.recipe.evaluation.bleu_tokenize}
        numbers, self.signatures = compute_metrics(self.metrics if names is None else names, *compared, **how)
        return numbers

    def named(self, value: Any) -> Any:
        """A prediction or reference in a form that people read (JSON), such as the name of a class."""
        return value

    def score_names(self, count: int) -> list:
        """What each of an example's `count` probabilities stands for, such as the name of a class."""
        return [self.named(number) for number in range(count)]

    def questions(self, source: Any) -> Iterator[tuple[dict[str, str], Any]]:
        """The examples of a split as ({column: text}, answer), for few-shot evaluation of any language model; none
        without `asks_for`. An answer is the number of a class, a number or a text.

        source: from `open`, after `prepare`. Raises UserError for an example that has no text or class.
        """
        return iter(())

    def with_rows(self, source: Any) -> Iterator[tuple[str, dict]]:
        """The examples of a split, (place, columns), that have a row, in the order of the rows.

        source: from `open`, after `rows`.
        """
        return iter(source)

    def loss_parts(self) -> Any | None:
        """An object that splits the loss of a model with several heads into parts, for the log; None: it has one part.

        It has `losses`, the names of the parts, whose means add up to the loss, the first a mean over labels; and
        sums(outputs, batch, num_items_in_batch) -> {name: (sum, count)}, tensors without gradients, for these parts and
        for further means, such as an accuracy.
        """
        return None

    def of_trainer(self) -> dict[str, Any]:
        """The keyword arguments of AnyformerTrainer that come from the objective."""
        return {
            "shifts_labels": self.shifts_labels,
            "own_loss": self.loss(),
            "logits_of": self.logits_of(),
            "scorer": self.scorer(),
            "loss_parts": self.loss_parts(),
            "parts_of": self.parts_of,
        }

    def parts_of(self, rows: "Rows") -> tuple[Sequence[str], Callable[[int], str]] | None:
        """(names of the parts of `rows`, function from a row's number to its part): each part's loss is logged."""
        return (list(rows.parts), lambda number: rows.place(number)[0]) if rows.parts else None

    def metrics_of_validations(self) -> list[str]:
        """The recipe's metrics that validations during training measure; others need the finished model."""
        metrics = self.recipe.evaluation.metrics
        return [name for name in metrics if self.validates_metrics or METRICS[name].of_validations]

    def metrics_of_answers(self) -> list[str]:
        """The metrics that `measure` computes from answers; validations do so if one is evaluation.best_metric."""
        return []

    def unanswered(self, rows: "Rows", numbers: Sequence[int]) -> list[str]:
        """Those of `metrics_of_answers` that cannot be measured on the rows `numbers`."""
        return []

    def some_rows(self, rows: "Rows", most: int) -> list[int]:
        """Numbers of the rows to measure where at most `most` examples are measured."""
        return evenly_spread(len(rows), most)

    def splits_to_measure(self, split: str, metrics: Sequence[str]) -> list[str]:
        """The splits whose rows are needed to measure `split`: itself, and `train` where a metric reads it."""
        return [split, "train"] if any(METRICS[name].needs_train for name in metrics) else [split]

    def metrics_of_pass(
        self, metrics: Sequence[str], result: dict[str, float], rows: "Rows", train: "Rows | None"
    ) -> dict[str, float]:
        """Those of `metrics` that can be computed from one pass over the rows, and the losses of the rows' parts.

        result: "loss" (mean), "nll" (its sum), "predictions" (labels counted), and the scorer's metrics. train: the
        training rows, where they are available.
        """
        of_parts = [name for name in result if name.startswith(OF_PART)]
        return {name: result[name] for name in (*of_parts, *metrics) if name in result}

    def class_report(self, rows: "Rows", numbers: Sequence[int], source: Any) -> dict[str, Any] | None:
        """Scores of single classes in the last pass over the rows `numbers` (class_report.py); None: no classes."""
        return None

    def finish(self, finished: "FinishedModel", splits: "dict[str, Rows]") -> tuple[dict[str, float], list[dict]]:
        """The finished model's (metrics, samples), on all splits but `train`: ({"validation_bleu": ...}, [...])."""
        metrics = {}
        for split, rows in splits.items():
            if split != "train":
                measured = self.measure(finished, rows, range(len(rows)), splits["train"])
                metrics |= {f"{split}_{name}": value for name, value in measured.items()}
        return metrics, self.samples(finished, splits)

    def measure(
        self, finished: "FinishedModel", rows: "Rows", numbers: Sequence[int], train: "Rows | None"
    ) -> dict[str, float]:
        """The recipe's metrics that need the finished model itself, on the rows `numbers`."""
        return {}

    shown: list[dict] = []  # the first answers of the latest `measure`, as samples

    def samples(self, finished: "FinishedModel", splits: "dict[str, Rows]") -> list[dict]:
        """Outputs of the finished model to show: {"prompt", "text", and "reference" where there is one}."""
        return self.shown

    # ---- rows without labels

    cut = 0  # number of texts that `predict` has truncated to what the model can read
    on_white = 0  # number of images with transparency that it has read

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        """{setting: column} for what the model reads of rows without labels. there: the rows' columns."""
        return self.text_columns()

    def asked(self, row: dict, place: str) -> Any:
        """What the model reads of a row without a label, in the form that `predict` takes. Raises UserError."""
        raise TypeError(f"{type(self).__name__} answers no rows; what the model's head says does (of_heads.py)")

    def predict(self, finished: "FinishedModel", asked: list) -> list[dict[str, Any]]:
        """The answers {"prediction": ..., further columns} to some rows. asked: what `asked` returned for each."""
        raise TypeError(f"{type(self).__name__} answers no rows; what the model's head says does (of_heads.py)")

    def draw(self, finished: "FinishedModel", rows: "Rows", path: Path) -> bool:
        """Write a picture of the model's outputs for some rows to `path`; return whether there is one."""
        return False


def evenly_spread(total: int, most: int) -> list[int]:
    """At most `most` of the numbers from 0 to total - 1, evenly spread from the first."""
    return list(range(total)) if most >= total else [i * total // most for i in range(most)]
