"""What an objective does with a model that is measured or answers: metrics, samples, rows without labels."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plugins import METRICS

OF_PART = "loss_"  # how the names of the losses of parts begin, and no other number's

if TYPE_CHECKING:
    from ..data.rows import Rows
    from .finished_model import FinishedModel


class Measuring:
    """The second half of the interface of an Objective (base.py), which is called once there is a model."""

    def adopt(self, config, source: Any) -> None:
        """Take from a trained model's config what the recipe leaves open, before `prepare`. Raises UserError."""

    keeps_scores = False  # whether predictions hold the probabilities of classes, whatever the metrics compare

    def scorer(self) -> Any | None:
        """What measures the predictions of an evaluation pass: has predictions(logits, labels) and
        compute_metrics(predictions), as an objective may itself. None: the loss alone is measured."""
        return self if hasattr(self, "predictions") else None

    def compare(self, *compared: Any, names: list[str] | None = None, rows: list | None = None) -> dict[str, float]:
        """The metrics of what is compared, predictions and references first, as metrics.compute_metrics takes it."""
        from ..metrics import compute_metrics

        numbers, self.signatures = compute_metrics(self.metrics if names is None else names, *compared, rows=rows)
        return numbers

    def named(self, value: Any) -> Any:
        """A prediction or reference of the metrics as JSON that people read, such as the name of a class."""
        return value

    def score_names(self, count: int) -> list:
        """What each of `count` probabilities of an example is of."""
        return [self.named(number) for number in range(count)]

    def questions(self, source: Any) -> Iterator[tuple[dict[str, str], Any]]:
        """The examples of a split as ({column: text}, answer), which any language model can be asked for; none without
        `asks_for`. An answer is the number of a class, a number or a text.

        source: of `open`, after `prepare`. Raises UserError for an example that has no text or class.
        """
        return iter(())

    def loss_parts(self) -> Any | None:
        """What tells the parts of the loss of a model with several heads apart, for the log; None: it has one part.

        Has `losses`, the names of the parts, whose means add up to the loss, the first one counted in labels; and
        sums(outputs, batch, num_items_in_batch) -> {name: (sum, count)}, tensors without gradients, of these parts and
        of further shares, such as an accuracy.
        """
        return None

    def of_trainer(self) -> dict[str, Any]:
        """What AnyformerTrainer takes from an objective, as its keyword arguments."""
        return {
            "shifts_labels": self.shifts_labels,
            "own_loss": self.loss(),
            "logits_of": self.logits_of(),
            "scorer": self.scorer(),
            "loss_parts": self.loss_parts(),
            "parts_of": self.parts_of,
        }

    def parts_of(self, rows: "Rows") -> tuple[Sequence[str], Callable[[int], str]] | None:
        """(names of the parts that rows are of, number of a row -> its part): each part's own loss is logged."""
        named = getattr(rows, "parts", None)  # rows of a plug-in may have no such attribute
        return (list(named), lambda number: rows.place(number)[0]) if named else None

    def metrics_of_validations(self) -> list[str]:
        """Those of the recipe's metrics that validations during training measure; others need the finished model."""
        wanted = self.recipe.evaluation.metrics
        return [name for name in wanted if self.validates_metrics or METRICS[name].of_validations]

    def metrics_of_answers(self) -> list[str]:
        """What `measure` computes from answers; each validation does so where evaluation.best_metric is one of them."""
        return []

    def unanswered(self, rows: "Rows", numbers: Sequence[int]) -> list[str]:
        """Those of metrics_of_answers that the rows `numbers` do not measure."""
        return []

    def some_rows(self, rows: "Rows", most: int) -> list[int]:
        """Numbers of the rows that are measured where `most` is the limit."""
        return evenly_spread(len(rows), most)

    def splits_to_measure(self, split: str, metrics: Sequence[str]) -> list[str]:
        """The splits whose rows it takes to measure `split`: itself, and `train` where a metric compares with it."""
        return [split, "train"] if any(METRICS[name].needs_train for name in metrics) else [split]

    def metrics_of_pass(
        self, metrics: Sequence[str], result: dict[str, float], rows: "Rows", train: "Rows | None"
    ) -> dict[str, float]:
        """Those of `metrics` that follow from one pass over the rows, and the losses of their parts.

        result: "loss" (mean), "nll" (its sum), "predictions" (labels counted), and what the scorer measured.
        train: rows of the training text, where they are at hand.
        """
        of_parts = [name for name in result if name.startswith(OF_PART)]
        return {name: result[name] for name in (*of_parts, *metrics) if name in result}

    def class_report(self, rows: "Rows", numbers: Sequence[int], source: Any) -> dict[str, Any] | None:
        """How single classes came off in the last pass over the rows `numbers` (class_report.py); None: it has none."""
        return None

    def finish(self, finished: "FinishedModel", splits: "dict[str, Rows]") -> tuple[dict[str, float], list[dict]]:
        """({"validation_bleu": ...}, samples): what the finished model is measured by and what is shown of it."""
        metrics = {}
        for split, rows in splits.items():
            if split != "train":
                found = self.measure(finished, rows, range(len(rows)), splits["train"])
                metrics |= {f"{split}_{name}": value for name, value in found.items()}
        return metrics, self.samples(finished, splits)

    def measure(
        self, finished: "FinishedModel", rows: "Rows", numbers: Sequence[int], train: "Rows | None"
    ) -> dict[str, float]:
        """The recipe's metrics that need the finished model itself, of the rows `numbers`."""
        return {}

    shown: list[dict] = []  # the first answers that the latest `measure` has given, as samples

    def samples(self, finished: "FinishedModel", splits: "dict[str, Rows]") -> list[dict]:
        """What is shown of the finished model: {"prompt", "text", and "reference" where there is one}."""
        return self.shown

    # ---- rows without labels

    cut = 0  # texts that `predict` has cut to what the model reads

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        """{setting: column} of what the model reads of a row without a label; what there is may leave some out."""
        return self.text_columns()

    def asked(self, row: dict, place: str) -> Any:
        """What the model reads of a row without a label, as `predict` takes it. Raises UserError."""
        raise TypeError(f"{type(self).__name__} answers no rows; what the model's head says does (of_heads.py)")

    def predict(self, finished: "FinishedModel", asked: list) -> list[dict[str, Any]]:
        """The answers, {"prediction": ..., further columns}, to some rows, of which `asked` has given these."""
        raise TypeError(f"{type(self).__name__} answers no rows; what the model's head says does (of_heads.py)")

    def draw(self, finished: "FinishedModel", rows: "Rows", path: Path) -> bool:
        """Write a picture of what the model makes of some rows; return whether there is one."""
        return False


def evenly_spread(total: int, most: int) -> list[int]:
    """At most `most` of the numbers from 0 to total - 1, evenly spread from the first."""
    return list(range(total)) if most >= total else [i * total // most for i in range(most)]
