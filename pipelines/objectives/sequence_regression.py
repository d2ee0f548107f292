"""One number for a text or a pair of texts, such as how similar two sentences are (STS-B)."""

import math
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from .labelled_texts import LabelledTexts, LabelledTextSettings


@dataclass
class SequenceRegressionSettings(LabelledTextSettings):
    label_field: str = doc("column that holds the number", "label")


@register_objective
class SequenceRegression(LabelledTexts):
    """One number for a text or a pair of texts, by squared error."""

    name = "sequence_regression"
    Settings = SequenceRegressionSettings
    compares = "numbers"
    default_metrics = ("pearson", "spearman")
    validates_metrics = True
    loss_unit = "squared error"

    def check_metrics(self) -> None:
        from ..metrics import check_metrics

        check_metrics(self.recipe.evaluation.metrics, self.compares, "evaluation.metrics")

    # ---- labels

    def label_type(self):
        import pyarrow

        return pyarrow.float32()

    def label_identity(self) -> str:
        return "a number"

    def label_of(self, value: Any, place: str) -> float:
        from ..data.batch_keys import IGNORE_INDEX

        field = f"task.label_field={self.settings.label_field!r}"
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise UserError(f"{field}: {place} holds {value!r}, which is no finite number")
        if value == IGNORE_INDEX:
            raise UserError(f"{field}: {place} holds {value}, which stands for a missing label; scale the labels")
        return float(value)

    def label_facts(self, labels: list[float]) -> dict[str, Any]:
        return {"label_sum": sum(labels), "label_squares": sum(label * label for label in labels)}

    def label_words(self, facts: dict[str, Any]) -> str:
        mean = facts["label_sum"] / facts["examples"]
        spread = math.sqrt(max(0.0, facts["label_squares"] / facts["examples"] - mean * mean))
        return f"labels {mean:.4g} on average, with a standard deviation of {spread:.4g}"

    # ---- the model

    def adopt(self, config, source: Any) -> None:
        """Raises UserError for a model with several answers."""
        if config.num_labels != 1:
            raise UserError(
                f"MODEL={self.recipe.model.name_or_path} tells {config.num_labels} classes apart; {self.setting} takes "
                f"a model with one number"
            )

    def config_fields(self) -> dict[str, Any]:
        """One output; its name is what `pipeline()` answers with."""
        return {"num_labels": 1, "id2label": {0: "score"}, "label2id": {"score": 0}, "problem_type": "regression"}

    # ---- measuring: the task itself is its scorer

    def scorer(self):
        return self

    def predictions(self, logits, labels):
        """(B, 1) and (B,) -> (B, 2): the number a row is given, and the one it has."""
        import torch

        return torch.stack([logits.float().squeeze(-1), labels.float()], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of the predictions of all rows, an array of shape (rows, 2)."""
        from ..metrics import compute_metrics

        given, true = predictions.T.tolist()
        return compute_metrics(self.recipe.evaluation.metrics, given, true)[0]

    # ---- words

    def legend(self):
        from .showing import PREDICTED, marked

        return marked("the text as the model reads it, ", ("special tokens", PREDICTED), " included, and its number")

    def show(self, console, rows, number: int, row: dict) -> None:
        self.show_label(console, number, row, f"label {float(row['labels']):.4g}")
