"""The part of an objective that measures: predictions or answers in, `Scored` out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .data import Data

if TYPE_CHECKING:
    from ..data.rows import Rows
    from .answers import FinishedModel

OF_PART = "loss_"  # prefix of the names of the parts' losses, and of no other metric


@dataclass(frozen=True)
class Scored:
    """What a pass over rows, or the answers to some, came to.

    values: metric -> number. signatures: metric -> settings and versions that its value depends on. judged: the single
    predictions, for the report on classes. samples: {"prompt", "text", "reference"} of the first answers.
    """

    values: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    judged: Any = None
    samples: Sequence[dict] = ()


class Scores:
    """The measures of an objective beside the loss. It keeps no result.

    predicts: what the logits of an evaluation pass give a prediction for: a "row" or each "label" of it; "": it does
    not measure them. keeps_scores: whether predictions hold the classes' probabilities even if no metric needs them.
    """

    predicts: str = ""

    def __init__(self, data: Data, keeps_scores: bool = False):
        self.objective, self.data, self.tokenizer = data.objective, data, data.tokenizer
        self.recipe, self.settings = self.objective.recipe, self.objective.settings
        self.keeps_scores = keeps_scores

    def _compare(self, *compared: Any, names: list[str] | None = None, rows: list | None = None, **further) -> Scored:
        """The metrics of predictions, references and what else metrics.compute_metrics takes. further: of Scored."""
        from ..metrics import compute_metrics

        how = {"rows": rows, "tokenize": self.recipe.evaluation.bleu_tokenize}
        return Scored(*compute_metrics(self.objective.metrics if names is None else names, *compared, **how), **further)

    # ---- a pass over rows

    def predictions(self, logits: Any, labels: Any) -> Any:
        """(N, K) numbers, one line per row or per label; only where it `predicts`."""
        raise TypeError(f"{type(self).__name__} reads no logits")

    def scored(self, predictions: Any) -> Scored:
        """The metrics of the predictions of all rows, an array (rows, K); only where it `predicts`."""
        raise TypeError(f"{type(self).__name__} reads no logits")

    def of_pass(
        self, metrics: Sequence[str], result: dict[str, float], rows: "Rows", train: "Rows | None"
    ) -> dict[str, float]:
        """Those of `metrics` that can be computed from one pass over the rows, and the losses of the rows' parts.

        result: "loss" (mean), "nll" (its sum), "predictions" (labels counted), and the values of `scored`. train: the
        training rows, where they are available.
        """
        of_parts = [name for name in result if name.startswith(OF_PART)]
        return {name: result[name] for name in (*of_parts, *metrics) if name in result}

    def class_report(
        self, scored: Scored | None, rows: "Rows", numbers: Sequence[int], source: Any
    ) -> dict[str, Any] | None:
        """Scores of single classes in a pass over the rows `numbers` (class_report.py); None: no classes."""
        return None

    # ---- answers of a model

    def of_answers(self, finished: "FinishedModel", rows: "Rows", numbers: Sequence[int]) -> Scored:
        """The metrics that need the model's answers, on the rows `numbers`."""
        return Scored()

    def named(self, value: Any) -> Any:
        """A prediction, a reference, or the number of a class, in a form that people read (JSON), such as its name."""
        return value
