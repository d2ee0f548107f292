"""One number for a text or a pair of texts, such as how similar two sentences are (STS-B)."""

import math
from dataclasses import dataclass
from typing import Any

from ..data.batch_keys import IGNORE_INDEX
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from ..recipes.schema import doc
from .label_values import number_of
from .labelled_texts import LabelledTexts, LabelledTextSettings


@dataclass
class SequenceRegressionSettings(LabelledTextSettings):
    label_field: str = doc("column that holds the number", "label")


@register_objective
class SequenceRegression(LabelledTexts):
    """One number for a text or a pair of texts, by squared error."""

    name = "sequence_regression"
    asks_for = "numbers"
    Settings = SequenceRegressionSettings
    label_type = "float32"
    compares = "numbers"
    default_metrics = ("pearson", "spearman")
    validates_metrics = True
    loss_unit = "squared error"

    def refuse_smoothing(self) -> None:
        """Raise UserError for label smoothing."""
        if self.recipe.training.extra.get("label_smoothing_factor"):
            raise UserError("training.label_smoothing_factor has no effect on numbers; remove it")

    def before_training(self) -> None:
        self.refuse_smoothing()  # not in `check`: finished models of earlier versions may name it, and are measured
        super().before_training()

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
        """(B, 1) and (B,) -> (B, 2): the predicted number and the label of each row."""
        return torch.stack([logits.float().squeeze(-1), labels.float()], dim=-1)

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of the predictions of all rows, an array of shape (rows, 2)."""
        return self.compare(*predictions.T.tolist())

    # ---- the model

    def adopt(self, config, source: Any) -> None:
        """Raise UserError for a model with more than one output."""
        if config.num_labels != 1:
            raise UserError(
                f"MODEL={self.recipe.model.name_or_path} tells {config.num_labels} classes apart; {self.setting} takes "
                f"a model with one number"
            )

    def config_fields(self) -> dict[str, Any]:
        """One output, named as `pipeline()` shows it.

        Identity keeps sentence-transformers, which opens a model of pairs as a CrossEncoder, from applying a sigmoid.
        """
        fields = {"id2label": {0: "score"}, "label2id": {"score": 0}, "problem_type": "regression"}
        if self.settings.text_pair_field is not None:
            fields["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return {**super().config_fields(), **self.planned_fields(), **fields}

    def planned_fields(self) -> dict[str, Any]:
        return {"num_labels": 1}

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return {"prediction": found[0]["score"]}
