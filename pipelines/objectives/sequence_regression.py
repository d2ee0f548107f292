"""One number for a text or a pair of texts, such as how similar two sentences are (STS-B)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from ..data.account import Account
from ..data.batch_keys import IGNORE_INDEX
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from ..recipes.schema import doc
from .base import Planned
from .class_labels import decoder_start
from .label_values import decimal_mark, number_of, plain_number
from .labelled_texts import AnswersTexts, LabelledTextSettings, LabelledTextTask, ReadsLabelledTexts
from .learns import Learns
from .reads import label_column
from .scores import Scored, Scores


@dataclass
class NumberSettings(LabelledTextSettings):
    decimal_mark: Literal["comma", "point"] | None = doc(
        "in labels that are texts, as in .csv files: comma: 3,5 and 1.234,5; point: 3.5 and 1,234.5; null: found by "
        "all of them where one has a comma"
    )


@dataclass
class SequenceRegressionSettings(NumberSettings):
    label_field: str = doc("column that holds the number", "label")


class Numbers:
    """Labels that are numbers."""

    type, names = "float32", ()

    def __init__(self, settings: NumberSettings, sources: Mapping[str, Any]):
        self.settings, self.sources = settings, sources

    @cached_property
    def found_mark(self) -> str | None:
        """The decimal mark of the label column, by all its texts."""
        column = self.settings.label_field
        of_splits = [examples.only(column).numbered() for examples in self.sources.values()]
        rows = (row for _, (_, row) in chain(*of_splits) if isinstance(row, dict))
        return decimal_mark(row[column] for row in rows if type(row[column]) is str)

    def answer(self, row: dict, place: str, account: Account | None = None) -> float:
        """The number in an example's column, as `number_of` reads it. Raises UserError."""
        _, field = label_column(self.settings)
        value = self.value_in(row)
        if type(value) is str:  # not FromSheet, which has a decimal point
            mark = self.settings.decimal_mark or (self.found_mark if "," in value else "point")
            if mark is None:
                either = f"{plain_number(value, 'comma')} or {plain_number(value, 'point')}"
                raise UserError(f"{field}: {place} holds {value!r}, which may be {either}; set task.decimal_mark")
            if mark == "comma" and "," in value and account is not None:
                account.read_as("label", "", "read with a decimal comma", hint="task.decimal_mark sets it")
            value = plain_number(value, mark)
        number = number_of(value, field, place, account)
        if number == IGNORE_INDEX:
            raise UserError(f"{field}: {place} holds {number:g}, which stands for a missing label; scale the labels")
        return number

    of = answer  # the label of an example: its number

    def value_in(self, row: dict) -> Any:
        """What the label column of an example holds."""
        return row[self.settings.label_field]

    def identity(self) -> Any:
        mark = self.settings.decimal_mark
        return "a number" if mark is None else ["a number", mark]

    def facts(self, labels: list[float]) -> dict[str, Any]:
        return {"label_sum": sum(labels), "label_squares": sum(label * label for label in labels)}

    def words(self, facts: dict[str, Any]) -> str:
        mean = facts["label_sum"] / facts["examples"]
        spread = math.sqrt(max(0.0, facts["label_squares"] / facts["examples"] - mean * mean))
        return f"labels {mean:.4g} on average, with a standard deviation of {spread:.4g}"

    def shown(self, label: Any) -> str:
        return f"label {float(label):.4g}"


class NumberScores(Scores):
    """Metrics of predicted numbers, where there are labels."""

    @property
    def predicts(self) -> str:
        return "row" if self.settings.label_field is not None else ""

    def predictions(self, logits, labels):
        """(B, 1) and (B,) -> (B, 2): the predicted number and the label of each row."""
        return torch.stack([logits.float().squeeze(-1), labels.float()], dim=-1)

    def scored(self, predictions) -> Scored:
        """Metrics of the predictions of all rows, an array of shape (rows, 2)."""
        return self._compare(*predictions.T.tolist())


class LearnsNumber(Learns):
    """One output, named as `pipeline()` shows it."""

    def config_fields(self) -> dict[str, Any]:
        """For pairs Identity: it keeps sentence-transformers, which opens a CrossEncoder, from applying a sigmoid."""
        fields = {"id2label": {0: "score"}, "label2id": {"score": 0}, "problem_type": "regression"}
        if self.settings.text_pair_field is not None:
            fields["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return decoder_start(self.objective, self.tokenizer) | super().config_fields() | fields


@register_objective
class SequenceRegression(LabelledTextTask):
    """One number for a text or a pair of texts, by squared error."""

    name = "sequence_regression"
    Settings = SequenceRegressionSettings
    Reads, Learns, Scores, Answers = ReadsLabelledTexts, LearnsNumber, NumberScores, AnswersTexts
    compares = asks_for = unsmoothed = "numbers"
    default_metrics = ("pearson", "spearman")
    words = replace(LabelledTextTask.words, loss="squared error")

    def labels(self, reads: ReadsLabelledTexts, sources: dict) -> Numbers:
        """Raises UserError for a model that is measured and has more than one output."""
        config = reads.facts.measured
        if config is not None and config.num_labels != 1:
            raise UserError(
                f"MODEL={self.recipe.model.name_or_path} tells {config.num_labels} classes apart; {self.setting} takes "
                f"a model with one number"
            )
        return Numbers(self.settings, sources)

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return {"prediction": found[0]["score"]}

    def planned(self) -> Planned:
        return replace(super().planned(), fields={"num_labels": 1})
