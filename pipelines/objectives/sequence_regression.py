"""One number for a text or a pair of texts, such as how similar two sentences are (STS-B)."""

from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from .labelled_texts import LabelledTexts, LabelledTextSettings
from .number_task import NumberTask


@dataclass
class SequenceRegressionSettings(LabelledTextSettings):
    label_field: str = doc("column that holds the number", "label")


@register_objective
class SequenceRegression(NumberTask, LabelledTexts):
    """One number for a text or a pair of texts, by squared error."""

    name = "sequence_regression"
    asks_for = "numbers"
    Settings = SequenceRegressionSettings

    # ---- the model

    def adopt(self, config, source: Any) -> None:
        """Raises UserError for a model with several answers."""
        if config.num_labels != 1:
            raise UserError(
                f"MODEL={self.recipe.model.name_or_path} tells {config.num_labels} classes apart; {self.setting} takes "
                f"a model with one number"
            )

    def config_fields(self) -> dict[str, Any]:
        """One output; its name is what `pipeline()` answers with.

        sentence-transformers opens a model of pairs as a CrossEncoder, and would put a sigmoid on the one output.
        """
        fields = {"id2label": {0: "score"}, "label2id": {"score": 0}, "problem_type": "regression"}
        if self.settings.text_pair_field is not None:
            fields["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return {**super().config_fields(), **self.planned_fields(), **fields}

    def planned_fields(self) -> dict[str, Any]:
        return {"num_labels": 1}

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return {"prediction": found[0]["score"]}
