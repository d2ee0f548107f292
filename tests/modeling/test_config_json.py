"""config.json holds the fields that a model's parts read, and no others; loading gives all others their defaults."""

import json

import pytest
from anyformer.modeling import TransformerConfig
from anyformer.modeling.families import FAMILIES
from anyformer.pipelines.recipes.compose import load_preset
from family_variants import ZOO, a_share, labelled_batch
from transformers import AutoConfig

MOST_KEYS = 45  # transformers' own GPT2Config has 28, LlamaConfig 23
# Read by transformers' loading, saving and generation, or by tokenizers and servers, not by a model.
OF_LIBRARIES = {"model_type", "architectures", "transformers_version", "dtype", "auto_map", "max_position_embeddings"}
OF_LIBRARIES |= {f"{name}_token_id" for name in ("bos", "eos", "cls", "sep", "mask")}
# Read when a config is made, which derives the fields of experts and of stacks from them.
DERIVED_FROM = {"intermediate_size", "mlp_layer_types", "num_decoder_layers"}
VARIANTS = "rotary learned alibi relative sinusoidal post mqa parallel sandwich no-rope-full gated sinks differential "
VARIANTS += "value-residual blocks chunked sliding linear delta-full compressive-full recurrent latent-full-yarn "
VARIANTS += "cross-attention-alone tokens-ahead mixtral llama4 gpt_oss bert albert deberta_v3 longformer modernbert t5 "
VARIANTS += "bart switch cls"


def keys_of(config) -> dict:
    return json.loads(config.to_json_string())


@pytest.fixture
def reads(monkeypatch):
    """The names of the fields that are read of any of our configs."""
    names, plain = set(), TransformerConfig.__getattribute__

    def noted(self, name):
        names.add(name)
        return plain(self, name)

    monkeypatch.setattr(TransformerConfig, "__getattribute__", noted)
    return names


@pytest.mark.parametrize("variant", a_share([each for each in ZOO if each.name in VARIANTS.split()], 6), ids=str)
def test_every_key_of_a_saved_config_is_read_by_a_model_of_its_family(variant, reads):
    config = variant.config(num_labels=2)
    row = FAMILIES[config.model_type]
    reads.clear()
    for name in row.heads.values():
        model = row.load(name)(config)
        if name == row.heads[row.pretraining] or "SequenceClassification" in name:
            model(**labelled_batch(name, config))
    assert keys_of(config).keys() - OF_LIBRARIES - DERIVED_FROM - reads == set()


@pytest.mark.parametrize("variant", a_share(ZOO, 8), ids=str)
def test_a_saved_config_is_that_of_a_file_with_all_fields(variant, tmp_path):
    config = variant.config()
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path) == type(config)(**config.to_dict())


@pytest.mark.parametrize("name", ["gpt2", "llama3_8b", "bert_base", "t5_small", "vit_base_patch16_224", "gemma3_1b"])
def test_a_config_file_is_short_and_says_nothing_of_parts_that_are_not_there(name):
    family, fields = load_preset(name)
    config = AutoConfig.for_model(f"anyformer_{family}", **fields)
    keys = keys_of(config)
    assert len(keys) <= MOST_KEYS and None not in keys.values()
    assert ("rope_parameters" in keys) == (config.position_encoding == "rotary")
    assert not [key for key in keys if key.startswith(("linear_", "relative_", "swiglu_")) and name != "t5_small"]
