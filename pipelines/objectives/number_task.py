"""Tasks whose answer is a number: what a label may be, and what is measured."""

import math
from contextlib import suppress
from typing import Any

from ..data.batch_keys import IGNORE_INDEX
from ..errors import UserError
from ..lazy import torch
from .class_task import held


class NumberTask:
    """What all tasks of one number per example share."""

    label_type = "float32"
    compares = "numbers"
    default_metrics = ("pearson", "spearman")
    validates_metrics = True
    loss_unit = "squared error"

    # ---- labels

    def label_identity(self) -> Any:
        return "a number"

    def label_of(self, value: Any, place: str) -> float:
        """The number in a column's value, as `number_of` reads it. Raises UserError."""
        field = f"task.label_field={self.settings.label_field!r}"
        number = number_of(value, field, place)
        if number == IGNORE_INDEX:
            raise UserError(f"{field}: {place} holds {number:g}, which stands for a missing label; scale the labels")
        return number

    def label_facts(self, labels: list[float]) -> dict[str, Any]:
        return {"label_sum": sum(labels), "label_squares": sum(label * label for label in labels)}

    def label_words(self, facts: dict[str, Any]) -> str:
        mean = facts["label_sum"] / facts["examples"]
        spread = math.sqrt(max(0.0, facts["label_squares"] / facts["examples"] - mean * mean))
        return f"labels {mean:.4g} on average, with a standard deviation of {spread:.4g}"

    # ---- measuring: the task itself is its scorer

    def predictions(self, logits, labels):
        """(B, 1) and (B,) -> (B, 2): the number a row is given, and the one it has."""
        return torch.stack([logits.float().squeeze(-1), labels.float()], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of the predictions of all rows, an array of shape (rows, 2)."""
        return self.compare(*predictions.T.tolist())


def number_of(value: Any, field: str, place: str) -> float:
    """The number in a column's value; that of CSV files is a text. Raises UserError, which names field and place."""
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not math.isfinite(number):
        raise UserError(f"{field}: {place} holds {held(value)}, which is no finite number")
    return float(number)
