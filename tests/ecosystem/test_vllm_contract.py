"""What vLLM's transformers backend asks of a model, asserted without vLLM.

vLLM builds the base model with `AutoModel` from the config, replaces linear layers and embedding by its own, gives all
sequences of a step as one row with `position_ids` and no mask, and answers each layer's attention call itself, from the
config: one attention instance per layer with a scale, a window, a soft cap. It makes the logits itself, too
(vllm/model_executor/models/transformers/base.py and causal.py). `Serving` below does the same in a few lines.
"""

import json

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-5  # fp32, attention in another order

SERVED = {
    "rotary": {},
    "untied-biases-qk-norm": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "qk_norm": True},
    "learned-mlp-layernorm": {
        "position_encoding": "learned",
        "norm_type": "layernorm",
        "mlp_type": "mlp",
        "hidden_act": "gelu",
    },
    "sliding-every-other-layer": {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 4},
    "soft-caps-and-scales": {
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 4.0,
    },
    "llama3-rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 500000.0,
        }
    },
}
REFUSED = {
    "alibi": {"position_encoding": "alibi"},
    "relative": {"position_encoding": "relative"},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": 4},
}


class Instance:
    """One layer's attention as vLLM keeps it: made from the config, called with flat (tokens, heads x size) tensors."""

    def __init__(self, config, layer: int):
        self.head_dim, self.softcap = config.head_dim, getattr(config, "attn_logit_softcapping", None)
        sliding = config.layer_types[layer] == "sliding_attention"
        self.window = config.sliding_window if sliding else None
        self.scale = config.head_dim**-0.5

    def __call__(self, query, key, value, lengths):
        heads = [x.view(len(x), -1, self.head_dim).transpose(0, 1) for x in (query, key, value)]
        outputs = []
        for q, k, v in zip(*(x.split(lengths, dim=1) for x in heads)):
            k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
            scores = q @ k.transpose(1, 2) * self.scale
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            distance = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
            hidden = distance < 0 if self.window is None else (distance < 0) | (distance >= self.window)
            outputs.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v)
        return torch.cat(outputs, dim=1).transpose(0, 1).flatten(1)


def served_attention(
    module, query, key, value, attention_mask, scaling=None, attention_instances=None, lengths=None, **kwargs
):
    """vLLM's function: everything but q, k, v and the scale comes from the instance; masks and biases are ignored."""
    instance = attention_instances[module.layer_idx]
    if scaling is not None:
        instance.scale = float(scaling)
    query, key, value = (x.transpose(1, 2).flatten(2)[0] for x in (query, key, value))
    return instance(query, key, value, lengths), None


AttentionInterface.register("vllm", served_attention)


class Serving:
    """The base model of a saved folder, served as vLLM serves it."""

    def __init__(self, folder, weights):
        self.config = AutoConfig.from_pretrained(folder)
        self.config._attn_implementation = "vllm"
        self.model = AutoModel.from_config(self.config).eval()
        self.model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")})
        self.head = weights["lm_head.weight"]
        self.instances = {i: Instance(self.config, i) for i in range(self.config.num_hidden_layers)}

    @torch.no_grad()
    def __call__(self, sequences: list[torch.Tensor], as_embeddings: bool = False) -> torch.Tensor:
        """Logits (tokens, V) of all sequences, computed as one row."""
        row = torch.cat(sequences)[None]
        outputs = self.model(
            input_ids=None if as_embeddings else row,
            inputs_embeds=self.model.get_input_embeddings()(row) if as_embeddings else None,
            use_cache=False,
            position_ids=torch.cat([torch.arange(len(s)) for s in sequences])[None],
            attention_instances=self.instances,
            lengths=[len(s) for s in sequences],
            return_dict=False,
        )
        logits = outputs[0][0, ...] @ self.head.T * getattr(self.config, "logit_scale", 1.0)
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)


@pytest.mark.parametrize("name", SERVED)
@torch.no_grad()
def test_served_logits_are_the_models_own(tiny_config, tmp_path, name):
    model = AnyformerDecoderForCausalLM(tiny_config(**SERVED[name])).eval()
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    sequences = [torch.randint(3, 97, (n,), generator=torch.Generator().manual_seed(n)) for n in (9, 1, 17)]
    serving = Serving(tmp_path, model.state_dict())
    alone = torch.cat([model(s[None], use_cache=False).logits[0] for s in sequences])
    for as_embeddings in (False, True):
        torch.testing.assert_close(serving(sequences, as_embeddings), alone, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_a_step_may_hold_more_tokens_than_a_model_has_positions(tiny_config, tmp_path):
    """Sequences of many users share one row; only each one's own length is bounded."""
    model = AnyformerDecoderForCausalLM(tiny_config(position_encoding="learned", max_position_embeddings=16)).eval()
    model.save_pretrained(tmp_path)
    sequences = [torch.randint(3, 97, (n,), generator=torch.Generator().manual_seed(n)) for n in (16, 9, 12)]
    served = Serving(tmp_path, model.state_dict())(sequences)
    alone = torch.cat([model(s[None], use_cache=False).logits[0] for s in sequences])
    torch.testing.assert_close(served, alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", SERVED)
def test_every_structural_demand_is_met(tiny_config, tmp_path, name):
    model = AnyformerDecoderForCausalLM(tiny_config(**SERVED[name]))
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert {"AutoConfig", "AutoModel", "AutoModelForCausalLM"} <= saved["auto_map"].keys()
    base_class = get_class_from_dynamic_module(saved["auto_map"]["AutoModel"], str(tmp_path))
    assert base_class.is_backend_compatible() and base_class._supports_attention_backend
    base, config = model.model, model.config
    assert base._supports_attention_backend
    # The whole model counts as an encoder as soon as one module says `is_causal=False`.
    assert all(getattr(module, "is_causal", True) for module in base.modules())
    attentions = [module for module in base.modules() if hasattr(module, "layer_idx")]
    assert [module.layer_idx for module in attentions] == list(range(config.num_hidden_layers))
    assert len(config.layer_types) == config.num_hidden_layers == len(base.layers)
    # Read from the config by these names.
    assert config.head_dim and config.num_key_value_heads and config.vocab_size and config.hidden_size
    # Linear layers become column and row parallel by the plan; other styles would leave them whole.
    plan = base.tp_plan
    linear = {n for n, m in base.named_modules() if isinstance(m, torch.nn.Linear)}
    planned = {n for n in linear if plan.get(n.replace(".0.", ".*.").replace(".1.", ".*.")) in ("colwise", "rowwise")}
    assert planned == linear
    # Stages: modules by name, of which exactly one is the list of layers.
    if (stages := base.pp_plan) and config.position_encoding != "learned":
        assert [n for n in stages if isinstance(base.get_submodule(n), torch.nn.ModuleList)] == ["layers"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_server_would_silently_drop_is_refused(tiny_config, name):
    """Score biases and masks do not reach vLLM's kernels."""
    assert not AnyformerDecoderForCausalLM(tiny_config(**REFUSED[name])).model._supports_attention_backend
