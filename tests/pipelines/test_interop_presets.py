"""Presets compute what the config files of the published checkpoints say, and have twins of their architectures."""

import pytest
from anyformer.pipelines.interop.matching import ARCHITECTURES, ORIGIN, effective_fields, native_config, our_config
from anyformer.pipelines.recipes.compose import load_preset
from published_models import PUBLISHED
from transformers import AutoConfig

CHECKPOINTS = [name for name, row in PUBLISHED.items() if row.model_type]
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id")


def preset_config(name: str, **others):
    family, fields = load_preset(name)
    return AutoConfig.for_model(f"anyformer_{family}", **fields, **others)


def test_every_architecture_names_a_preset_of_a_published_model():
    assert {architecture.preset for architecture in ARCHITECTURES.values()} - {None} <= set(CHECKPOINTS)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_preset_computes_what_the_published_config_says(name):
    preset, published = (
        {key: value for key, value in effective_fields(config).items() if key not in TOKEN_IDS}
        for config in (preset_config(name), our_config(PUBLISHED[name].config()))
    )
    assert preset == published


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_preset_has_a_twin_of_its_architecture(name):
    published = PUBLISHED[name].config()
    ids = {
        key: getattr(published, key, None) for key in TOKEN_IDS
    }  # of the tokenizer; RoBERTa counts positions from one
    architecture, native = native_config(preset_config(name, **ids, **{ORIGIN: published.model_type}))
    assert architecture.native == native.model_type == PUBLISHED[name].model_type


def test_gpt3_says_why_it_has_no_twin():
    from anyformer.pipelines.errors import UserError

    with pytest.raises(UserError, match="nearest, gpt2, differs in attention_pattern"):
        native_config(preset_config("gpt3_small"))
