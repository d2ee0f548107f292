"""The tiny twin of a config: small, with the same kinds of layers, run forward and backward, made anew by one line."""

import json

import pytest
import torch
from anyformer.pipelines.checks.inputs import batch, text
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.twin import (
    KINDS,
    MOST_PARAMETERS,
    classes,
    constructor,
    kind_of,
    special_tokens,
    tiny_config,
    tiny_model,
)
from anyformer.pipelines.twin_rows import NOT_ASKED
from published_models import PUBLISHED
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

import anyformer  # noqa: F401 (registers our families)

DIVERSE = [("causal", name) for name in ("opt", "llama", "qwen3_next", "jamba", "gemma3_text", "deepseek_v3", "dots1")]
DIVERSE += [("masked", "bert"), ("masked", "modernbert"), ("seq2seq", "t5"), ("seq2seq", "bart")]
DIVERSE += [("image", "vit"), ("image", "resnet"), ("causal", "anyformer_decoder"), ("causal", "anyformer_moe")]
DIVERSE += [("masked", "anyformer_encoder"), ("seq2seq", "anyformer_seq2seq"), ("image", "anyformer_vit")]


def passes(kind: str, model_type: str, dtype: torch.dtype) -> PreTrainedModel:
    """A twin after all that a class must stand: evaluation, training with labels, gradients; all finite."""
    config = tiny_config(CONFIG_MAPPING[model_type](), kind)
    assert eval(constructor(config)).to_dict() == config.to_dict()
    model = tiny_model(config, kind, dtype=dtype)
    given = batch(config, kind)
    floats = {name: x for name, x in given.items() if torch.is_tensor(x) and x.is_floating_point()}
    given |= {name: x.to(dtype) for name, x in floats.items()}
    with torch.no_grad():
        assert torch.isfinite(model(**given).logits).all()
    labels = torch.arange(2) if kind == "image" else given.get("decoder_input_ids", given.get("input_ids")).clone()
    loss = model.train()(**given, labels=labels).loss
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    return model


@pytest.mark.parametrize(("kind", "model_type"), DIVERSE)
def test_a_twin_runs_in_double(kind, model_type):
    model = passes(kind, model_type, torch.float64)
    assert kind_of(model.config, [type(model).__name__]) == kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nearly_every_class_of_transformers_has_a_twin_that_runs(kind, capsys):
    asked = [name for name in classes(kind) if (kind, name) not in NOT_ASKED and name in CONFIG_MAPPING]
    failed = []
    for name in asked:
        try:
            said = f"{passes(kind, name, torch.float32).num_parameters():,} parameters"
        except Exception as error:
            failed.append(name)
            said = f"{type(error).__name__}: {str(error).splitlines()[-1] if str(error) else ''}"
        with capsys.disabled():
            print(kind, name, said)
    assert len(failed) <= 0.05 * len(asked), failed


def test_transformers_alone_draws_the_same_weights():
    config = tiny_config(CONFIG_MAPPING["gpt2"]())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for p in model.parameters():
        p.data += torch.randn_like(p) / 10
    ours = tiny_model(config, "causal", dtype=torch.float32).state_dict()
    assert all(torch.equal(ours[name], value) for name, value in model.state_dict().items())


def test_a_published_config_keeps_what_is_no_size():
    own = {"_name_or_path": "a/model", "dtype": "bfloat16"}
    own |= {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}
    published = AutoConfig.for_model("llama", **PUBLISHED["llama3_8b"].fields | own)
    config = tiny_config(published)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 8)
    assert config.rope_parameters == published.rope_parameters | {"original_max_position_embeddings": 32}
    assert config.rope_parameters["rope_type"] == "llama3"
    assert not config.name_or_path and config.dtype is None and len(set(config.eos_token_id)) == 3
    special = special_tokens(config.to_dict())
    assert max(special) < config.vocab_size and not special & set(text(config, 4, 50).flatten().tolist())


@pytest.mark.parametrize(
    ("given", "field", "kept"),
    [
        ({"model_type": "jamba"}, "layer_types", ["full_attention", "linear_attention"] * 2),
        ({"model_type": "smollm3"}, "no_rope_layers", [1, 1, 0, 0]),
        (
            {"model_type": "nemotron_h", "layers_block_type": ["mlp", "moe"] * 9},
            "layers_block_type",
            ["mlp", "moe"] * 2,
        ),
        ({"model_type": "qwen3_next"}, "layer_types", ["linear_attention"] * 2 + ["full_attention"] * 2),
        ({"model_type": "gemma3_text"}, "layer_types", ["sliding_attention"] * 2 + ["full_attention"] * 2),
        ({"model_type": "deepseek_v3"}, "first_k_dense_replace", 2),
        ({"model_type": "gpt_neo"}, "attention_layers", ["global", "local", "global", "local"]),
    ],
)
def test_a_twin_has_two_layers_of_each_kind(given, field, kept):
    config = tiny_config(AutoConfig.for_model(**given))
    assert getattr(config, field) == kept and config.num_hidden_layers == 4


class Foreign(PreTrainedConfig):
    """A config as code from the Hub has it, with fields of its own."""

    model_type = "foreign"

    def __init__(self, hidden_size=4096, n_heads=64, mixer_pattern=None, state_dim=128, odd=4096, **kwargs):
        self.hidden_size, self.n_heads, self.state_dim, self.odd = hidden_size, n_heads, state_dim, odd
        self.num_hidden_layers = len(mixer_pattern or "amam")
        self.mixer_pattern = mixer_pattern or ["a", "m", "a", "m", "a", "m"]
        if odd % hidden_size:
            raise ValueError(f"odd={odd} is no multiple of hidden_size={hidden_size}")
        super().__init__(**{name: value for name, value in kwargs.items() if name != "num_hidden_layers"})


def test_a_config_never_seen_shrinks_by_the_names_of_its_fields():
    config = tiny_config(Foreign(mixer_pattern=["a"] * 3 + ["m"] * 3))
    assert (config.hidden_size, config.n_heads, config.mixer_pattern) == (32, 4, ["a", "a", "m", "m"])


def test_the_constructor_of_code_from_the_hub_loads_it_from_there(tmp_path):
    code = "from transformers import PreTrainedConfig\nclass C(PreTrainedConfig):\n    model_type = 'unheard'\n"
    code += "    def __init__(self, d_model=512, n_layers=9, **kwargs):\n        super().__init__(**kwargs)\n"
    (tmp_path / "configuration_c.py").write_text(code + "        self.d_model, self.n_layers = d_model, n_layers\n")
    given = {"model_type": "unheard", "d_model": 640, "n_layers": 9, "auto_map": {"AutoConfig": "configuration_c.C"}}
    (tmp_path / "config.json").write_text(json.dumps(given))
    config = tiny_config(AutoConfig.from_pretrained(tmp_path, trust_remote_code=True))
    made = eval(constructor(config))
    assert "n_layers=2" in constructor(config) and made.to_dict() == config.to_dict()


def test_what_the_class_refuses_is_said_in_its_sentence():
    with pytest.raises(UserError, match="foreign: odd=4099 is no multiple of hidden_size=32"):
        tiny_config(Foreign(hidden_size=4099, odd=4099))


def test_a_twin_that_is_not_tiny_is_refused():
    with pytest.raises(UserError, match=f"at most {MOST_PARAMETERS:,} are tiny"):
        tiny_model(CONFIG_MAPPING["gpt2"](), "causal")
