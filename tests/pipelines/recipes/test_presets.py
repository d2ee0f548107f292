"""Presets are the published architectures: as many parameters, in our classes and in transformers' own."""

import pytest
import torch
from anyformer.pipelines.accounting.flops import active_parameters
from anyformer.pipelines.recipes.compose import load_preset
from anyformer.pipelines.recipes.introspection import family_row
from anyformer.pipelines.recipes.recipe_files import shipped, shipped_yaml
from family_variants import a_share
from published_models import PUBLISHED
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    ImageGPTForCausalImageModeling,
)

OWN = {"nanogpt_char"}  # no vocabulary of its own, so no published count
NATIVE = {
    "decoder": AutoModelForCausalLM,
    "moe": AutoModelForCausalLM,
    "encoder": AutoModel,
    "vit": AutoModel,
    "seq2seq": AutoModelForSeq2SeqLM,
}


HEAD_BIAS_IS_A_BUFFER = {"marian", "bart"}


def counted(name: str, active: bool = False) -> int:
    """The number that a preset holds, less what transformers has as a buffer."""
    facts, (_, fields) = shipped_yaml("models", name), load_preset(name)
    count = facts.get("active_parameters", facts["parameters"]) if active else facts["parameters"]
    if PUBLISHED[name].model_type in HEAD_BIAS_IS_A_BUFFER:
        assert fields["lm_head_bias"]
        count -= fields["vocab_size"]
    return count


@pytest.mark.parametrize("name", a_share(shipped("models"), 8))
def test_a_preset_holds_the_number_of_parameters_of_the_model_that_is_built(name):
    family, fields = load_preset(name)
    row, facts = family_row(family), shipped_yaml("models", name)
    lacks_vocabulary = family != "vit" and "vocab_size" not in fields  # the number then leaves embeddings out
    config = AutoConfig.for_model(f"anyformer_{family}", **({"vocab_size": 7} if lacks_vocabulary else {}) | fields)
    with torch.device("meta"):
        model = row.load(row.heads["AutoModel" if row.bidirectional else row.pretraining])(config)
    embeddings = model.get_input_embeddings().weight.numel() if lacks_vocabulary else 0
    assert facts["parameters"] == model.num_parameters() - embeddings
    assert facts.get("active_parameters", facts["parameters"]) == active_parameters(model) - embeddings


def native_model(family: str, config):
    """transformers' own model; no Auto class makes ImageGPT's with its head."""
    if config.model_type == "imagegpt":
        return ImageGPTForCausalImageModeling(config)
    return NATIVE[family].from_config(config)


def test_every_preset_of_a_published_model_is_in_the_table():
    assert set(PUBLISHED) == set(shipped("models")) - OWN


def test_the_parameter_counts_are_the_published_ones_and_so_are_those_at_work_on_a_token():
    for name, row in PUBLISHED.items():
        assert counted(name) == row.count, name
        assert counted(name, active=True) == (row.active or row.count), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in PUBLISHED.items() if row.model_type])
def test_transformers_own_class_has_as_many_parameters(name):
    family, fields = load_preset(name)
    with torch.device("meta"):
        model = native_model(family, PUBLISHED[name].config())
    parameters = {key: p for key, p in model.named_parameters() if "embed_positions" not in key or p.requires_grad}
    if not fields.get("tie_word_embeddings", True) and model.config.tie_word_embeddings:
        # transformers ties T5 v1.1's head when it builds one, and unties it when the weights of a checkpoint differ.
        parameters["head"] = model.get_output_embeddings().weight
    assert sum(p.numel() for p in parameters.values()) == counted(name)
