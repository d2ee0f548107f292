"""Chooses the objective that answers rows without labels by the model's head, where no recipe of a task is saved."""

import json
from collections.abc import Collection
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from ..plugins import OBJECTIVES, objective_of
from ..positions import UNLIMITED, learns_positions, most_positions
from ..recipes.schema import DataSection, ModelSection, Recipe
from .base import Objective

# How the class name in config.architectures ends -> the objective that answers with this head. Models with another head
# answer with vectors.
HEADS = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
    "ForMultipleChoice": "multiple_choice",
    "ForImageClassification": "image_classification",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForConditionalGeneration": "text_to_text",
    "ForSeq2SeqLM": "text_to_text",
    "MTModel": "text_to_text",
}
POOLING = "1_Pooling/config.json"  # in a model folder of sentence-transformers


def objective_of_head(config, recipe: Recipe, tokenizer, there: Collection[str]) -> Objective:
    """The objective that answers for the model of `recipe`, whose own objective answers no rows.

    config: the model's. recipe: only its model and the column of its texts are read. tokenizer: the model's; None for
    a model of images. there: the columns of the rows; those of a second text and of conversations are optional.
    """
    head = next(iter(config.architectures or []), "")
    name = next((name for ending, name in HEADS.items() if head.endswith(ending)), None)
    text = recipe.data.text_field
    fields: dict[str, Any] = {}
    if name == "sequence_classification":
        if config.problem_type == "multi_label_classification":
            name = "multi_label_classification"
        elif config.num_labels == 1:
            name = "sequence_regression"
        fields = {"text_field": text, "text_pair_field": "text_pair" if "text_pair" in there else None}
    elif name == "token_classification":
        fields = {"tokens_field": "tokens" if "tokens" in there else text}
    elif name == "multiple_choice" and "question" in there:
        fields = {"question_field": "question", "context_field": "context" if "context" in there else None}
    elif name == "causal" and tokenizer is not None and tokenizer.chat_template:
        name = "instruction_tuning"
        fields = {"prompt_field": text, "input_field": None}
        fields |= {"messages_field": "messages"} if "messages" in there else {}
    elif name == "text_to_text":
        fields = {"source": f"{{{text}}}", "target_field": "target"}
    elif tokenizer is None and name != "image_classification":
        name = "masked_image"  # it answers with vectors
    elif name is None:
        name = "sentence_similarity"
        fields = {"text_field": text, "text_pair_field": "text_pair" if "text_pair" in there else None}
        fields |= {"pooling": pooling_of(recipe.model.name_or_path)}
    cls = OBJECTIVES[name]
    if tokenizer is not None and "max_length" in (row.name for row in dataclass_fields(cls.Settings)):
        most, positions = tokenizer.model_max_length, most_positions(config)
        if positions is not None and learns_positions(config):
            most = min(most, positions)
        most = most if most < UNLIMITED else positions or 512
        fields["max_length"] = most
        if name == "question_answering":  # at most the defaults of its settings
            fields |= {"max_length": min(most, 384), "stride": 128 if most >= 384 else most // 4}
    settings = {cls.section: cls.Settings(**fields)}
    data = DataSection(text_field=text)
    model = ModelSection(name_or_path=recipe.model.name_or_path)
    settings |= {"trust_remote_code": recipe.trust_remote_code}
    return objective_of(Recipe(name="RECIPE", model=model, data=data, **{"objective": None, "task": None} | settings))


def pooling_of(name_or_path: str) -> str:
    """How a model folder of sentence-transformers pools the vectors of tokens: "first" or "mean"; "mean" for others."""
    from transformers.utils import cached_file

    options = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    file = cached_file(name_or_path, POOLING, **options)
    pooling = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    return "first" if pooling.get("pooling_mode_cls_token") else "mean"
