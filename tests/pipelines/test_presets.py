"""Presets are the published architectures: as many parameters, by our arithmetic and in transformers' own classes."""

from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.accounting.parameter_count import count_active_parameters, count_parameters
from anyformer.pipelines.recipes.compose import load_preset
from anyformer.pipelines.recipes.files import shipped, shipped_yaml
from anyformer.pipelines.recipes.introspection import family_config
from published_models import PUBLISHED
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, ImageGPTForCausalImageModeling

OWN = {"nanogpt_char"}  # no vocabulary of its own, so no published count
NATIVE = {
    "decoder": AutoModelForCausalLM,
    "moe": AutoModelForCausalLM,
    "encoder": AutoModel,
    "vit": AutoModel,
    "seq2seq": AutoModelForSeq2SeqLM,
}


HEAD_BIAS_IS_A_BUFFER = {"marian", "bart"}


def fields_of(name: str) -> SimpleNamespace:
    """The fields of a preset, underived ones None, as a recipe's."""
    return family_config(*load_preset(name))


def counted(name: str) -> int:
    """By arithmetic, less what transformers has as a buffer."""
    _, fields = load_preset(name)
    count = count_parameters(fields_of(name))
    if PUBLISHED[name].model_type in HEAD_BIAS_IS_A_BUFFER:
        assert fields["lm_head_bias"]
        count -= fields["vocab_size"]
    return count


def native_model(family: str, config):
    """transformers' own model; no Auto class makes ImageGPT's with its head."""
    if config.model_type == "imagegpt":
        return ImageGPTForCausalImageModeling(config)
    return NATIVE[family].from_config(config)


def test_every_preset_of_a_published_model_is_in_the_table():
    assert set(PUBLISHED) == set(shipped("models")) - OWN


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameter_count_is_the_published_one(name):
    assert counted(name) == PUBLISHED[name].count


def test_the_parameters_at_work_on_a_token_are_the_published_ones():
    for name, row in PUBLISHED.items():
        assert count_active_parameters(fields_of(name)) == (row.active or count_parameters(fields_of(name))), name


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


def test_sizes_of_one_architecture_differ_in_sizes_alone():
    sizes = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    sizes |= {"logit_multiplier", "embedding_multiplier", "initializer_range", "description"}
    pairs = [("bert_base", "bert_large"), ("roberta_base", "roberta_large"), ("albert_base", "albert_large")]
    pairs += [("modernbert_base", "modernbert_large"), ("deberta_v3_small", "deberta_v3_base")]
    pairs += [("t5_small", "t5_base"), ("t5_base", "t5_large"), ("t5_v1_1_small", "t5_v1_1_base")]
    pairs += [("t5_v1_1_small", "mt5_small"), ("bart_base", "bart_large")]
    for one, other in pairs:
        one, other = shipped_yaml("models", one), shipped_yaml("models", other)
        assert {key for key in {*one, *other} if one.get(key) != other.get(key)} <= sizes
