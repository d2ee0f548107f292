"""What vLLM's transformers backend asks of a model, asserted without vLLM.

vLLM builds the base model with `AutoModel` from the config, replaces linear layers and embedding by its own, gives all
sequences of a step as one row with `position_ids` and no mask, and answers each layer's attention call itself, from the
config: one attention instance per layer with a scale, a window, a soft cap. It makes the logits itself, too
(vllm/model_executor/models/transformers/base.py and causal.py). `Serving` below does the same in a few lines.
"""

import ast
import inspect
import json
import re
import textwrap

import pytest
import torch
from anyformer.modeling.base import is_own_backend, unserved
from anyformer.modeling.rules import serving
from anyformer.modeling.rules.serving import (
    CONTINUOUS_BATCHING,
    ENGINES,
    SGLANG,
    VLLM,
    refusal,
    refusals,
)
from anyformer.modeling.traits import RULES
from family_variants import ROPES, TINY_FIELDS, WINDOWS, tiny
from transformers import AttentionInterface, AutoConfig, AutoModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from yielded_lines import lines_of, lines_that_yield

import anyformer
from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-5  # fp32, attention in another order

SERVED = {
    "rotary": {},
    "untied-biases-qk-norm": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "qk_norm": True},
    # A step may hold more tokens than a model has positions: sequences of many users share one row.
    "learned-mlp-layernorm": {
        "position_encoding": "learned",
        "max_position_embeddings": 17,
        "norm_type": "layernorm",
        "mlp_type": "mlp",
        "hidden_act": "gelu",
    },
    "sliding-every-other-layer": WINDOWS,
    "soft-caps-and-scales": {
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 4.0,
    },
    "logit-multiplier": {"logit_multiplier": 0.3, "attention_multiplier": 0.2},
    "llama3-rope": {"rope_parameters": ROPES["llama3"]},
}
STRIDED = {"attention_pattern": ["strided_attention", "full_attention"], "attention_stride": 4}
# name -> (family, fields, engines that compute something else)
KERNELS = {VLLM, SGLANG}
REFUSED = {
    "alibi": ("decoder", {"position_encoding": "alibi"}, KERNELS),
    "relative": ("moe", {"position_encoding": "relative"}, KERNELS),
    "strided": ("decoder", STRIDED, KERNELS),
    "linear": ("decoder", {"attention_pattern": ["full_attention", "linear_attention"]}, set(ENGINES)),
    "recurrent": ("decoder", {"segment_length": 4, "memory_length": 4}, set(ENGINES)),
    "dynamic-rope": (
        "decoder",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        set(ENGINES),
    ),
    "gelu-experts": ("moe", {"hidden_act": "gelu"}, KERNELS),
    "ungated-experts": ("moe", {"mlp_type": "mlp"}, KERNELS),
    "value-residual": ("decoder", {"value_residual": True}, KERNELS),
    "prefix": ("decoder", {"prefix_lm": True}, set(ENGINES)),
    "cross-attention": ("decoder", {"add_cross_attention": True}, set(ENGINES)),
    "differential": ("decoder", {"differential_attention": True}, set(ENGINES)),
    "sinks": ("decoder", {"attention_sinks": True}, KERNELS),
    "weighted-inputs": ("moe", {"apply_router_weight_on_input": True}, KERNELS),
    "biased-experts": ("moe", {"mlp_bias": True}, KERNELS),
    "clamped-experts": ("moe", {"mlp_type": "clamped_glu"}, KERNELS),
    "capacity": ("moe", {"expert_capacity": 2}, set(ENGINES)),
    "narrow-head": ("decoder", {"output_vocab_size": 90, "tie_word_embeddings": False}, KERNELS),
    "multiplied-and-capped": ("decoder", {"logit_multiplier": 0.5, "final_logit_softcapping": 5.0}, {VLLM}),
    "multiplied-and-biased": ("decoder", {"logit_multiplier": 0.5, "lm_head_bias": True}, KERNELS),
    "window": ("decoder", WINDOWS, {SGLANG}),
    "capped-scores": ("decoder", {"attn_logit_softcapping": 5.0}, {SGLANG}),
    "scores-capped-below-1": ("decoder", {"attn_logit_softcapping": 0.5}, KERNELS),
    "encoder-window": ("encoder", WINDOWS, set(ENGINES)),
    "local-global": (
        "encoder",
        {"attention_pattern": ["local_global_attention"], "sliding_window": 4},
        set(ENGINES),
    ),
    "shared-layers": ("encoder", {"num_hidden_groups": 1}, set(ENGINES)),
    "convolution": ("encoder", {"conv_kernel_size": 3}, set(ENGINES)),
    "seq2seq": ("seq2seq", {}, set(ENGINES)),
    "vit": ("vit", {}, set(ENGINES)),
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


def interface_calls(forward) -> list[ast.Call]:
    """Calls of variables assigned from `ALL_ATTENTION_FUNCTIONS`, as vLLM finds them (fusers/attention.py)."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(forward))))
    looked_up = [
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("ALL_ATTENTION_FUNCTIONS.get_interface(")
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [call for call in calls if call.func.id in looked_up]


@pytest.mark.parametrize("name", SERVED)
def test_vllm_finds_one_dispatch_with_its_scale_and_three_projections_of_one_input(tiny_config, name):
    for module in AnyformerDecoderForCausalLM(tiny_config(**SERVED[name])).modules():
        if hasattr(module, "layer_idx"):
            source = inspect.getsource(type(module).forward)
            (call,) = interface_calls(type(module).forward)
            assert {word.arg: ast.unparse(word.value) for word in call.keywords}["scaling"] == "self.scaling"
            assert isinstance(module.scaling, int | float)
            for projection in "qkv":
                assert (
                    source.count(f"self.{projection}_proj")
                    == source.count(f"self.{projection}_proj(hidden_states)")
                    == 1
                )


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_engine_would_silently_drop_is_refused_where_it_builds_the_model(name):
    family, fields, engines = REFUSED[name]
    config = tiny(family, **fields)
    assert {engine for engine in ENGINES if refusal(config, engine)} == engines
    if family not in ("seq2seq", "vit"):  # without the package, a model refuses the same by itself
        assert bool(unserved(config)) == (VLLM in engines)
        assert bool(unserved(config, pages=True)) == (CONTINUOUS_BATCHING in engines) or family == "encoder"
    build = getattr(anyformer, f"{type(config).__name__.removesuffix('Config')}Model")._from_config
    if VLLM in engines and family not in ("seq2seq", "vit"):  # which vLLM does not build
        sentence = re.escape(refusal(config, VLLM))
        with pytest.raises(
            ValueError, match=f"^attn_implementation='vllm' would compute something else than .*{sentence}"
        ):
            build(config, attn_implementation="vllm")
        with pytest.raises(ValueError, match=sentence):
            build(config, attn_implementation="eager").set_attn_implementation("vllm")
    else:
        build(config, attn_implementation="vllm")


def test_every_refusal_is_met():
    configs = [tiny(family, **fields) for family, fields, _ in REFUSED.values()]
    met = {line for config in configs for line in lines_of(refusals(config))}
    assert lines_that_yield(serving) == met
    assert not any(refusal(tiny(family), engine) for family in ("decoder", "moe") for engine in ENGINES)
    assert refusal(tiny("encoder"), VLLM) is None and refusal(tiny("encoder"), CONTINUOUS_BATCHING)


def test_a_model_refuses_by_itself_without_the_packages_sentences(tiny_config, monkeypatch):
    monkeypatch.delitem(RULES, "explain_unserved")
    build = AnyformerDecoderForCausalLM._from_config
    with pytest.raises(ValueError, match="it does not compute position_encoding=alibi; anyformer convert"):
        build(tiny_config(position_encoding="alibi"), attn_implementation="vllm")
    assert not any(map(unserved, (tiny_config(**fields) for fields in SERVED.values())))


def test_backends_of_transformers_are_nobody_elses():
    own = [None, "eager", "sdpa", "flex_attention", "flash_attention_3", "paged|eager", "kernels-community/flash-attn2"]
    assert all(map(is_own_backend, own)) and not any(map(is_own_backend, ("vllm", "sglang", "tgi")))


@pytest.mark.parametrize("family", ("decoder", "moe", "encoder"))
def test_classifiers_are_refused_and_a_folders_head_is_no_unknown_weight_for_the_base_model(family):
    """vLLM has a linear layer on the first token for them; embeddings are served from any folder."""
    config = tiny(family)
    prefix = type(config).__name__.removesuffix("Config")
    with pytest.raises(ValueError, match="does not classify as this head does"):
        getattr(anyformer, f"{prefix}ForSequenceClassification")._from_config(config, attn_implementation="vllm")
    config = tiny(family)
    base = getattr(anyformer, f"{prefix}Model")
    heads = [getattr(anyformer, name) for name in base.auto_classes.values()]
    for head in heads:
        keys = [key for key in head(config).state_dict() if not key.startswith("model.")]
        keys = [key for key in keys if not key.startswith("lm_head.")] if head is not base else []
        unknown = [
            key for key in keys if not any(re.search(p, key) for p in base(config)._keys_to_ignore_on_load_unexpected)
        ]
        assert not unknown, (head, unknown)


@pytest.mark.parametrize("family", TINY_FIELDS)
def test_configs_can_be_compared(family):
    """vLLM compares the whole config with that of its text; a field that dense models do not have must not stop it."""
    assert tiny(family) == tiny(family) and tiny(family) != tiny(family, norm_eps=1e-3)
