"""PEFT's LoRA on our models: trained, saved, loaded again, merged."""

import pytest
import torch
from family_variants import TINY_FIELDS, config_class
from training_steps import fit
from transformers import AutoModelForCausalLM

from anyformer import AnyformerDecoderForCausalLM

peft = pytest.importorskip("peft")

TOLERANCE = 1e-5  # fp32: merged weights add up in another order


def batch(tokenizer, texts):
    tokens = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    return {**tokens, "labels": tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)}


def tiny_base_model(family):
    import transformers

    return transformers.AutoModel.from_config(config_class(family)(**TINY_FIELDS[family]))


@pytest.mark.parametrize("mlp_type", ["glu", "mlp"])
def test_lora_on_all_linear_trains_saves_loads_and_merges(speaking_config, tokenizer, tmp_path, mlp_type):
    base = AnyformerDecoderForCausalLM(speaking_config(mlp_type=mlp_type))
    base.save_pretrained(tmp_path / "base")
    before = {name: p.clone() for name, p in base.named_parameters()}
    rows = batch(tokenizer, ["a sentence to learn", "and one more"])

    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    wrapped = {name.split(".")[-1] for name, m in model.named_modules() if isinstance(m, peft.tuners.lora.Linear)}
    mlp = {"gate_proj", "up_proj", "down_proj"} if mlp_type == "glu" else {"up_proj", "down_proj"}
    assert wrapped == {"q_proj", "k_proj", "v_proj", "o_proj"} | mlp  # and not the head
    losses = fit(model, rows, steps=20, lr=3e-2)
    assert losses[-1] < losses[0] - 0.1
    for name, p in base.named_parameters():
        if "lora" not in name:
            assert torch.equal(p, before[name.replace(".base_layer", "")]), name

    with torch.no_grad():
        expected = model(**rows).logits
        model.save_pretrained(tmp_path / "adapter")
        fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter")
        assert torch.equal(again.eval()(**rows).logits, expected)
        native_way = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        native_way.load_adapter(str(tmp_path / "adapter"))
        assert torch.equal(native_way.eval()(**rows).logits, expected)

        merged = again.merge_and_unload()
        assert type(merged) is AnyformerDecoderForCausalLM
        torch.testing.assert_close(merged(**rows).logits, expected, atol=TOLERANCE, rtol=0)
        merged.save_pretrained(tmp_path / "merged")
        alone = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
        assert torch.equal(alone(**rows).logits, merged(**rows).logits)


METHODS = {
    "lora": (lambda: peft.LoraConfig(), {"q_proj", "v_proj"}),
    "ia3": (lambda: peft.IA3Config(), {"q_proj", "v_proj", "down_proj"}),
    "norms": (lambda: peft.LNTuningConfig(), {"post_attention_layernorm"}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["decoder", "moe", "encoder", "seq2seq", "vit"])
def test_peft_knows_what_to_adapt_where_nobody_says(family, method):
    config, names = METHODS[method]
    base = tiny_base_model(family)
    before = {name for name, _ in base.named_modules()}
    names = {name for name in names if any(module.endswith(f".{name}") or module == name for module in before)}
    model = peft.get_peft_model(base, config())
    adapted = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names and all(any(f".{name}." in parameter for parameter in adapted) for name in names)
    assert all(any(f".{name}." in parameter for name in names) for parameter in adapted)


def test_lora_under_gradient_checkpointing_has_the_same_gradients(model, tokenizer):
    rows = batch(tokenizer, ["a sentence to learn", "and one more"])
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    ).train()

    def gradients():
        model.zero_grad()
        model(**rows).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}

    expected = gradients()
    model.gradient_checkpointing_enable()
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("how", ["lora", "whole"])
def test_an_adapted_head_trains_with_the_loss_of_its_own_logits(speaking_config, tokenizer, how):
    """The loss is made without logits from the head's weight; a wrapped head computes more than its weight says."""
    model = AnyformerDecoderForCausalLM(speaking_config(tie_word_embeddings=False))
    targets = {"target_modules": ["q_proj", "lm_head"], "init_lora_weights": False}
    whole = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    config = peft.LoraConfig(r=4, task_type="CAUSAL_LM", **(targets if how == "lora" else whole))
    model = peft.get_peft_model(model, config).train()
    rows = batch(tokenizer, ["a sentence to learn", "and one more"])
    loss = model(**rows).loss
    logits = model(**rows, return_logits=True).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows["labels"][:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    head = {name: p for name, p in model.named_parameters() if p.requires_grad and "lm_head" in name}
    got = torch.autograd.grad(loss, head.values())
    for name, gradient, expected_gradient in zip(head, got, torch.autograd.grad(expected, head.values())):
        assert expected_gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5, msg=name)
