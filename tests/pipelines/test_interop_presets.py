"""Presets are the published architectures: their parameter counts, and the config files of the checkpoints."""

from types import SimpleNamespace

import pytest
from anyformer.modeling.configuration import AnyformerDecoderConfig
from anyformer.pipelines.interop.twins import LINEAGES, effective_fields, native_config, our_config
from anyformer.pipelines.parameter_count import decoder_parameters
from anyformer.pipelines.recipe import load_preset
from anyformer.pipelines.recipe_files import shipped
from anyformer.pipelines.source_fields import family_fields
from transformers import CONFIG_MAPPING

# Parameters as published, a tied head counted once. "Hub": the count of stored tensors that the Hub shows beside a
# checkpoint of safetensors (less the head where a tied one is stored all the same); "card": the model card.
COUNTS = {
    "gpt2": (124_439_808, "Hub: openai-community/gpt2 and its siblings, without the stored causal masks"),
    "gpt2_medium": (354_823_168, "Hub"),
    "gpt2_large": (774_030_080, "Hub; card: 774M"),
    "gpt2_xl": (1_557_611_200, "Hub; card: 1.5B"),
    "gpt_neo_125m": (125_198_592, "Hub: EleutherAI/gpt-neo-125m, without masks"),
    "gpt_neo_1_3b": (1_315_575_808, "Hub: EleutherAI/gpt-neo-1.3B, without masks"),
    "gpt3_small": (125_226_240, "Brown et al. 2020, table 2.1: 125M; exact by arithmetic"),
    "llama": (6_738_415_616, "Hub: meta-llama/Llama-2-7b-hf"),
    "llama_1b": (1_235_814_400, "Hub: meta-llama/Llama-3.2-1B; card: 1.23B"),
    "llama3_8b": (8_030_261_248, "Hub: meta-llama/Llama-3.1-8B"),
    "mistral_7b": (7_241_732_096, "Hub: mistralai/Mistral-7B-v0.1; Jiang et al. 2023: 7.3B"),
    "qwen2_0_5b": (494_032_768, "Hub: Qwen/Qwen2-0.5B; card: 0.49B"),
    "qwen2_7b": (7_615_616_512, "Hub: Qwen/Qwen2-7B; card: 7.61B"),
    "qwen3_0_6b": (596_049_920, "Hub: Qwen/Qwen3-0.6B, 751,632,384 with the stored head; card: 0.6B"),
    "qwen3_8b": (8_190_735_360, "Hub: Qwen/Qwen3-8B; card: 8.2B, 6.95B of them not embeddings"),
    "bloom_560m": (559_214_592, "card of bigscience/bloom-560m"),
    "bloom_7b1": (7_069_016_064, "card of bigscience/bloom-7b1"),
    "mpt_7b": (6_649_286_656, "Hub: mosaicml/mpt-7b; card: 6.7B"),
}

LLAMA3_ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_ROPE |= {"original_max_position_embeddings": 8192}
LLAMA3 = {"vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
LLAMA3 |= {"max_position_embeddings": 131072, "rope_theta": 500000.0, "bos_token_id": None, "eos_token_id": None}
QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000.0}
# The fields in a checkpoint's config.json that differ from the defaults of transformers' class. Token ids are the
# tokenizer's business, and of no preset.
CONFIGS = {
    "gpt2": {},
    "gpt2_medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2_large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2_xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "gpt_neo_125m": {
        **{"hidden_size": 768, "num_layers": 12, "num_heads": 12},
        "attention_types": [[["global", "local"], 6]],
    },
    "gpt_neo_1_3b": {},
    "llama": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "llama_1b": LLAMA3
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True}
    | {"rope_scaling": LLAMA3_ROPE | {"factor": 32.0}},
    "llama3_8b": LLAMA3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"rope_scaling": LLAMA3_ROPE | {"factor": 8.0}},
    "mistral_7b": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    "qwen2_0_5b": {
        **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
        **{"num_key_value_heads": 2, "max_position_embeddings": 131072, "rope_theta": 1000000.0},
        **{"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 24},
    },
    "qwen2_7b": {
        **{"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28},
        **{"num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131072},
        **{"rope_theta": 1000000.0, "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
    },
    "qwen3_0_6b": QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"tie_word_embeddings": True},
    "qwen3_8b": QWEN3 | {"intermediate_size": 12288, "num_hidden_layers": 36},
    "bloom_560m": {"n_embed": 1024, "n_layer": 24, "n_head": 16},
    "bloom_7b1": {"n_embed": 4096, "n_layer": 30, "n_head": 32},
    "mpt_7b": {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432, "no_bias": True},
}
MODEL_TYPES = {"bloom": "bloom", "gpt2": "gpt2", "gpt_neo": "gpt_neo", "llama": "llama", "llama3": "llama"}
MODEL_TYPES |= {"mistral": "mistral", "mpt": "mpt", "qwen2": "qwen2", "qwen3": "qwen3"}
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def preset_config(name: str) -> AnyformerDecoderConfig:
    return AnyformerDecoderConfig(**load_preset(name)[1])


def published_config(name: str):
    model_type = max((stem for stem in MODEL_TYPES if name.startswith(stem)), key=len)
    return CONFIG_MAPPING[MODEL_TYPES[model_type]](**CONFIGS[name])


def test_every_preset_of_a_published_model_is_in_the_table_of_counts():
    own = {"nanogpt_char"}  # no vocabulary of its own, so no published count
    assert set(COUNTS) == set(shipped("models")) - own
    assert set(CONFIGS) == set(COUNTS) - {"gpt3_small"}  # never published as a checkpoint
    assert {lineage.preset for lineage in LINEAGES.values()} - {None} <= set(CONFIGS)


@pytest.mark.parametrize("name", COUNTS)
def test_the_parameter_count_is_the_published_one(name):
    defaults = {key: field.default for key, field in family_fields("decoder").items()}
    assert decoder_parameters(SimpleNamespace(**(defaults | load_preset(name)[1]))) == COUNTS[name][0]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_computes_what_the_published_config_says(name):
    preset, published = (
        {key: value for key, value in effective_fields(config).items() if key not in TOKEN_IDS}
        for config in (preset_config(name), our_config(published_config(name)))
    )
    assert preset == published


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_has_a_twin_of_its_lineage(name):
    lineage, native = native_config(preset_config(name))
    assert lineage.native == native.model_type == published_config(name).model_type


def test_gpt3_says_why_it_has_no_twin():
    from anyformer.pipelines.errors import UserError

    with pytest.raises(UserError, match="nearest, gpt2, differs in attention_pattern"):
        native_config(preset_config("gpt3_small"))
