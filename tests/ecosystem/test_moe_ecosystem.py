"""Mixtures of experts with PEFT, TRL and transformers' pipelines."""

import pytest
import torch
from packaging.version import Version
from training_steps import fit
from transformers import AutoModelForCausalLM

from anyformer import AnyformerMoeForCausalLM

TOLERANCE = 1e-5  # fp32: merged weights add up in another order
# `all-linear` finds linear layers; the weights of experts are parameters with an axis for the expert.
EXPERTS = ["experts.gate_up_proj", "experts.up_proj", "experts.down_proj"]
PROMPTS = ["The quick", "Pack my box with five", "How"]


def batch(tokenizer, texts):
    tokens = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    return {**tokens, "labels": tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)}


@pytest.fixture
def mixture(speaking_config):
    """Factory of a tiny mixture with a dense and a sparse layer; keyword arguments override."""

    def make(**overrides):
        dense = speaking_config()
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        names += ("max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
        fields = {name: getattr(dense, name) for name in names}
        fields |= {"num_experts": 4, "intermediate_size": 48, "mlp_pattern": ["dense", "sparse"]}
        torch.manual_seed(0)
        return AnyformerMoeForCausalLM(AnyformerMoeForCausalLM.config_class(**(fields | overrides))).eval()

    return make


def adapted(model, **options):
    peft = pytest.importorskip("peft")
    if Version(peft.__version__) < Version("0.21"):
        pytest.skip("PEFT before 0.21 cannot adapt two parameters of one module and all linear layers together")
    kind = [name for name in EXPERTS if any(n.endswith(name) for n, _ in model.named_parameters())]
    config = peft.LoraConfig(r=4, target_modules="all-linear", target_parameters=kind, task_type="CAUSAL_LM", **options)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("mlp_type", ["glu", "mlp"])
def test_lora_on_all_linear_and_experts_trains_saves_loads_and_merges(mixture, tokenizer, tmp_path, mlp_type):
    peft = pytest.importorskip("peft")
    base = mixture(mlp_type=mlp_type, shared_expert_intermediate_size=16)
    base.save_pretrained(tmp_path / "base")
    rows = batch(tokenizer, ["a sentence to learn", "and one more"])
    before = {name: p.clone() for name, p in base.named_parameters()}
    model = adapted(base)
    first = {name: p.clone() for name, p in model.named_parameters() if p.requires_grad}
    parts = ("self_attn.q_proj", "layers.0.mlp.up_proj", "shared_expert.down_proj", "mlp.experts")
    assert all(any(part in name for name in first) for part in parts)
    assert not any("lm_head" in name or "mlp.gate." in name for name in first)
    losses = fit(model, rows, steps=20, lr=3e-2)
    assert losses[-1] < losses[0] - 0.1
    for name, p in model.named_parameters():
        if p.requires_grad and "experts" in name:
            assert not torch.equal(p, first[name]), name
    for name, p in base.named_parameters():
        if "lora" not in name:
            assert torch.equal(p, before[name.replace(".base_layer", "")]), name

    with torch.no_grad():
        expected = model(**rows).logits
        model.save_pretrained(tmp_path / "adapter")
        fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
        torch.testing.assert_close(again(**rows).logits, expected, atol=1e-6, rtol=0)
        merged = again.merge_and_unload()
        assert type(merged) is AnyformerMoeForCausalLM
        torch.testing.assert_close(merged(**rows).logits, expected, atol=TOLERANCE, rtol=0)
        merged.save_pretrained(tmp_path / "merged")
        alone = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
        assert torch.equal(alone(**rows).logits, merged(**rows).logits)
    changed = {name for name, p in alone.named_parameters() if not torch.equal(p, before[name])}
    assert {name for name in before if ".experts." in name} <= changed


@pytest.mark.parametrize("own", [{"expert_capacity": 3}, {"router_bias_update_rate": 0.01}], ids=["capacity", "bias"])
def test_lora_on_a_router_trains_and_merges(mixture, tokenizer, own):
    peft = pytest.importorskip("peft")
    rows = batch(tokenizer, ["a sentence to learn", "and one more"])
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["gate.weight"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(mixture(**own).double(), config)
    losses = fit(model, rows, steps=5, lr=3e-2)
    assert losses[-1] < losses[0]
    (lora_B,) = (p for name, p in model.named_parameters() if "gate.lora_B" in name)
    assert lora_B.abs().max() > 0
    with torch.no_grad():
        expected = model.eval()(**rows).logits
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged(**rows).logits, expected, atol=1e-9, rtol=0)  # float64: sums in another order
