"""How similar two texts are, by the vectors of one encoder: a bi-encoder (Reimers and Gurevych 2019, section 3).

Each text is read by itself, so that vectors can be kept and compared by the million; a cross-encoder, which reads both
at once, is sequence_regression with a text_pair_field. The finished folder opens in sentence-transformers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..data.account import Account
from ..data.batch_keys import row_ids
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from ..recipes.introspection import check_beside
from ..recipes.schema import doc
from ..recipes.types import show
from .answering import vectors_of_texts
from .answers import Answers, FinishedModel
from .base import Planned, refuse_idle
from .data import Data
from .labelled_texts import LabelledTextTask, ReadsLabelledTexts
from .learns import Learns
from .losses import Cosine, InBatchNegatives
from .sequence_regression import Numbers, NumberScores, NumberSettings

SECOND = "second_text_at"  # key of a row: where its second text begins in input_ids


@dataclass
class SentenceSimilaritySettings(NumberSettings):
    text_pair_field: str | None = doc("column of the second text, which the same encoder reads by itself")
    label_field: str | None = doc(
        "column that holds how similar the two texts are; null: every pair is one of equals (in_batch_negatives)",
        "label",
    )
    label_range: list[float] = doc(
        "the labels that mean 'nothing in common' and 'the same': they become the cosines 0 and 1", [0.0, 1.0]
    )
    pooling: Literal["mean", "first"] = doc(
        "how the vectors of a text's tokens become one: their mean, or the first token's", "mean"
    )
    loss: Literal["cosine", "in_batch_negatives"] = doc(
        "cosine: (cosine - label) squared, CosineSimilarityLoss of sentence-transformers; in_batch_negatives: a text "
        "has to find its pair among those of the batch, MultipleNegativesRankingLoss; pairs that share a text are no "
        "negatives of each other",
        "cosine",
    )
    scale: float = doc("in_batch_negatives: what cosines are multiplied by before the softmax", 20.0, above=0)


class Cosines(Numbers):
    """Labels that say how similar two texts are, as cosines: task.label_range is scaled to [0, 1]."""

    def value_in(self, row: dict) -> Any:
        """Without labels every pair is one of equals."""
        label = self.settings.label_field
        return self.settings.label_range[1] if label is None else row[label]

    def of(self, row: dict, place: str, account: Account | None = None) -> float:
        """The label of an example as a cosine. Raises UserError for what is not in range."""
        least, most = self.settings.label_range
        label = self.answer(row, place, account)
        if not min(least, most) <= label <= max(least, most):
            raise UserError(
                f"task.label_field={self.settings.label_field!r}: {place} holds {label:g}, which is outside of "
                f"task.label_range={range_words(self.settings)}"
            )
        return (label - least) / (most - least)

    def identity(self) -> list:
        mark = self.settings.decimal_mark
        return [self.settings.label_field, self.settings.label_range] + ([mark] if mark else [])

    def shown(self, label: Any) -> str:
        return f"cosine {float(label):.4g}"


def range_words(settings: SentenceSimilaritySettings) -> str:
    """task.label_range as a user writes it."""
    return f"[{', '.join(f'{number:g}' for number in settings.label_range)}]"


class ReadsSeparateTexts(ReadsLabelledTexts):
    """Two texts that the model reads one by one; a row holds the tokens of both."""

    _needs_both = False  # a text alone is answered with its vector

    def _encoded_columns(self, tokenizer: Any) -> dict[str, str]:
        return {"input_ids": "int32[]", SECOND: "int32"}

    def _encoded(self, tokenizer: Any, texts: list[list[str]]) -> dict[str, list]:
        first, second = (super(ReadsSeparateTexts, self)._encoded(tokenizer, [some])["input_ids"] for some in texts)
        return {"input_ids": [a + b for a, b in zip(first, second)], SECOND: [len(ids) for ids in first]}

    def _lengths(self, encoded: dict[str, list]) -> list[tuple[int, ...]]:
        return [(at, len(ids) - at) for ids, at in zip(encoded["input_ids"], encoded[SECOND])]

    def collator(self, data: Data, packed: bool) -> "PairCollator":
        return PairCollator(super().collator(data, packed))

    def _texts_of(self, row: dict) -> dict[str, Any]:
        return dict(zip(("first: ", "second: "), halves(row)))


class LearnsCosines(Learns):
    """The cosines of two texts' vectors."""

    def adapt(self, model) -> None:
        self.objective.check_encoder(model.config)
        for name, parameter in model.named_parameters():
            if name.startswith(self.objective.unused_weights):
                parameter.requires_grad_(False)  # distributed training would wait for its gradient

    def loss(self):
        section = self.settings
        if section.loss == "in_batch_negatives":
            return InBatchNegatives(section.pooling, section.scale)
        return Cosine(section.pooling)

    def files(self, config) -> dict[str, str]:
        """The files by which sentence-transformers opens the folder."""
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{cls}"}
            for number, (path, cls) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
        ]
        pooling = {
            "word_embedding_dimension": config.hidden_size,
            "pooling_mode_cls_token": self.settings.pooling == "first",
            "pooling_mode_mean_tokens": self.settings.pooling == "mean",
        }
        reader = {"max_seq_length": self.settings.max_length, "do_lower_case": False}
        contents = {
            "modules.json": modules,
            "1_Pooling/config.json": pooling,
            "sentence_bert_config.json": reader,
            "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        }
        return {path: json.dumps(content, indent=1) + "\n" for path, content in contents.items()}


class AnswersVectors(Answers):
    """How similar two texts are, or the vector of one."""

    head = "AutoModel"

    def asked(self, row: dict, place: str) -> list[str]:
        return self.data.reads.texts_in(row, place, self.account)

    def predict(self, finished: FinishedModel, asked: list[list[str]]) -> list[dict[str, Any]]:
        texts = [text for row in asked for text in row]
        vectors = iter(vectors_of_texts(self, finished, texts, self.settings.pooling))
        rows = [[next(vectors) for _ in row] for row in asked]
        similar = torch.nn.functional.cosine_similarity
        return [{"prediction": similar(*torch.tensor(row), dim=0).item() if len(row) > 1 else row[0]} for row in rows]


@register_objective
class SentenceSimilarity(LabelledTextTask):
    """How similar two texts are: the cosine of their vectors, of one encoder (a bi-encoder)."""

    name = "sentence_similarity"
    taught = "vectors"
    Settings = SentenceSimilaritySettings
    Reads, Learns, Scores, Answers = ReadsSeparateTexts, LearnsCosines, NumberScores, AnswersVectors
    auto_class = AnswersVectors.head
    families = ("encoder",)
    unused_weights = ("pooler.",)
    compares = unsmoothed = "numbers"
    default_metrics = ("pearson", "spearman")
    words = replace(
        LabelledTextTask.words,
        step="pairs",
        loss="squared error",
        hub_task="sentence-similarity",
        hub_tags=("sentence-transformers",),
    )

    def check(self) -> None:
        section, evaluation = self.settings, self.recipe.evaluation
        if section.text_pair_field is None:
            raise UserError("task.text_pair_field is not set; sentence_similarity compares two columns of text")
        if len(section.label_range) != 2 or section.label_range[0] == section.label_range[1]:
            raise UserError(f"task.label_range={range_words(section)} must be two different numbers, as [0, 5] is")
        if (section.label_field is None) != (section.loss == "in_batch_negatives"):
            raise UserError(
                f"task.label_field={show(section.label_field)} does not go with task.loss={section.loss}: cosine "
                f"learns labels, and to in_batch_negatives every pair is one of equals (label_field=null)"
            )
        if section.loss == "cosine":
            refuse_idle(self, ["scale"], "task.loss=cosine", "task.loss=in_batch_negatives")
        idle = section.label_field is None and evaluation.metrics not in ([], list(self.default_metrics))
        why = "has no effect with task.label_field=null, as metrics compare with labels; remove it"
        check_beside("evaluation", evaluation, [("metrics=", idle, why)])
        if section.label_field is None and evaluation.best_metric not in (None, "loss"):
            raise UserError(
                f"evaluation.best_metric={evaluation.best_metric} needs labels, but task.label_field=null; write loss"
            )
        super().check()

    @property
    def asks_for(self) -> str | None:
        return None if self.settings.label_field is None else "numbers"

    def labels(self, reads: ReadsLabelledTexts, sources: dict) -> Cosines:
        """Raises UserError for an encoder-decoder that is measured."""
        if reads.facts.measured is not None:
            self.check_encoder(reads.facts.measured)
        return Cosines(self.settings, sources)

    def check_encoder(self, config) -> None:
        """Raise UserError for an encoder-decoder."""
        if getattr(config, "is_encoder_decoder", False):
            raise UserError(
                f"model.name_or_path={self.recipe.model.name_or_path} is an encoder-decoder, which gives no vectors of "
                f"a text alone; {self.setting} takes an encoder"
            )

    def planned(self) -> Planned:
        """No pooling layer in a fresh model, as it would not be trained."""
        fields = {"add_pooling_layer": False} if self.recipe.model.name_or_path is None else {}
        return replace(super().planned(), sequences=2, fields=fields)


def halves(row: dict) -> "tuple[torch.Tensor, torch.Tensor]":
    """The tokens of a row's two texts."""
    at = int(row[SECOND])
    return row["input_ids"][:at], row["input_ids"][at:]


class PairCollator:
    """Rows of pairs -> input_ids (2 B, T), the two texts of a pair one after the other, attention_mask, labels (B,)."""

    def __init__(self, pads: Callable[[list[dict]], dict]):
        self.pads = pads
        pads.left = False  # so that a text's first token is at position 0

    def __call__(self, rows: list[dict]) -> dict:
        batch = self.pads([{"input_ids": ids} for row in rows for ids in halves(row)])
        return batch | {"labels": torch.stack([row["labels"] for row in rows])} | row_ids(rows)
