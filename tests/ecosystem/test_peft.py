"""PEFT's adapters on our models of every family: trained, saved, loaded again, merged."""

import pytest
import torch
from anyformer.pipelines.adapters import load_model
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.merge_adapter import merge
from family_variants import ZOO, a_share, labelled_batch, tiny
from packaging.version import Version
from training_steps import batch_of, fit
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import anyformer
from anyformer import AnyformerDecoderForCausalLM, AnyformerEncoderForMaskedLM

peft = pytest.importorskip("peft")

TOLERANCE = 1e-5  # fp32: merged weights add up in another order


HEADS = {  # head: PEFT's task type, modules that stay whole
    "ForCausalLM": ("CAUSAL_LM", {"lm_head"}),
    "ForMaskedLM": (None, {"lm_head"}),
    "ForConditionalGeneration": ("SEQ_2_SEQ_LM", {"lm_head"}),
    "ForSequenceClassification": ("SEQ_CLS", {"score"}),
    "ForTokenClassification": ("TOKEN_CLS", {"score"}),
    "ForQuestionAnswering": ("QUESTION_ANS", {"qa_outputs"}),
    "ForImageClassification": (None, {"score"}),
}
SAYS_ITS_HEAD = ("ForTokenClassification", "ForQuestionAnswering", "ForImageClassification")  # PEFT knows the others
ADAPTED = {
    "ForCausalLM": ("decoder-rotary", "decoder-learned", "moe-llama4", "moe-switch_biases"),
    "ForMaskedLM": [f"encoder-{name}" for name in ("bert", "albert", "deberta", "longformer", "modernbert")],
    "ForConditionalGeneration": ("seq2seq-original", "seq2seq-t5", "seq2seq-umt5"),
    "ForSequenceClassification": ("encoder-bert", "encoder-modernbert", "seq2seq-bart"),
    "ForTokenClassification": ("encoder-bert", "encoder-modernbert"),
    "ForQuestionAnswering": ("encoder-bert", "encoder-modernbert"),
    "ForImageClassification": ("vit-vit",),
}


# `all-linear` finds linear layers; the weights of experts are parameters with an axis for the expert.
EXPERTS = ("experts.gate_up_proj", "experts.up_proj", "experts.down_proj")


def answers(model, rows):
    outputs = model(**rows)
    return outputs.start_logits if "start_logits" in outputs else outputs.logits


@pytest.mark.parametrize("head, name", a_share([(head, name) for head, names in ADAPTED.items() for name in names], 6))
def test_lora_on_all_linear_trains_saves_loads_and_merges(tmp_path, head, name):
    (variant,) = [variant for variant in ZOO if str(variant) == name]
    (task_type, kept), config = HEADS[head], variant.config(num_labels=2)
    cls = getattr(anyformer, type(config).__name__.removesuffix("Config") + head)
    base, rows = cls(config), labelled_batch(cls.__name__, config)
    if name == "encoder-longformer":  # its weights of global tokens are read where there are some
        rows["global_attention_mask"] = (torch.arange(rows["input_ids"].shape[1]) < 2).long().expand(2, -1)
    base.save_pretrained(tmp_path / "base")
    before = {name: p.clone() for name, p in base.named_parameters()}
    linears = {name for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)}
    own = {"exclude_modules": list(kept)} if head in SAYS_ITS_HEAD else {}
    if experts := [part for part in EXPERTS if any(parameter.endswith(part) for parameter in before)]:
        if Version(peft.__version__) < Version("0.21"):
            pytest.skip("PEFT before 0.21 cannot adapt two parameters of one module and all linear layers together")
        own["target_parameters"] = experts
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules="all-linear", task_type=task_type, **own))
    assert {n for n, m in base.named_modules() if isinstance(m, peft.tuners.lora.Linear)} == linears - kept
    model(**rows).loss.backward()
    for parameter, p in model.named_parameters():
        if "lora_B" in parameter:  # a block that read a weight past its module would leave the adapter without one
            assert p.grad is not None and p.grad.abs().sum() > 0, parameter
    trained = {n for n, p in model.named_parameters() if p.requires_grad and "lora" not in n}
    assert bool(trained) == (task_type in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"))
    model.zero_grad()
    losses = fit(model, rows, steps=20, lr=3e-2)
    assert losses[-1] < losses[0] - 0.05
    for parameter, p in base.named_parameters():
        if (original := parameter.replace(".base_layer", "")) in before and original.split(".")[0] not in kept:
            assert torch.equal(p, before[original]), parameter

    with torch.no_grad():
        expected = answers(model, rows)
        model.save_pretrained(tmp_path / "adapter")
        again = peft.PeftModel.from_pretrained(cls.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
        assert torch.equal(answers(again.eval(), rows), expected)
        if head == "ForCausalLM" and not experts:
            native_way = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
            native_way.load_adapter(str(tmp_path / "adapter"))
            assert torch.equal(answers(native_way.eval(), rows), expected)
        merged = again.merge_and_unload()
        assert type(merged) is cls
        torch.testing.assert_close(answers(merged, rows), expected, atol=TOLERANCE, rtol=TOLERANCE)
        changed = {parameter for parameter, p in merged.named_parameters() if not torch.equal(p, before[parameter])}
        assert changed and {name for name in before if name.endswith(EXPERTS)} <= changed
        merged.save_pretrained(tmp_path / "merged")
        alone = cls.from_pretrained(tmp_path / "merged").eval()
        assert torch.equal(answers(alone, rows), answers(merged, rows))


METHODS = {
    "lora": (lambda: peft.LoraConfig(), {"q_proj", "v_proj"}),
    "ia3": (lambda: peft.IA3Config(), {"q_proj", "v_proj", "down_proj"}),
    "norms": (lambda: peft.LNTuningConfig(), {"post_attention_layernorm"}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["decoder", "moe", "encoder", "seq2seq", "vit"])
def test_peft_knows_what_to_adapt_where_nobody_says(family, method):
    config, names = METHODS[method]
    base = AutoModel.from_config(tiny(family))
    before = {name for name, _ in base.named_modules()}
    names = {name for name in names if any(module.endswith(f".{name}") or module == name for module in before)}
    model = peft.get_peft_model(base, config())
    adapted = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names and all(any(f".{name}." in parameter for parameter in adapted) for name in names)
    assert all(any(f".{name}." in parameter for name in names) for parameter in adapted)


@pytest.mark.parametrize("how", ["lora", "whole"])
def test_an_adapted_head_trains_with_the_loss_of_its_own_logits(speaking_config, tokenizer, how):
    """The loss is made without logits from the head's weight; a wrapped head computes more than its weight says."""
    model = AnyformerDecoderForCausalLM(speaking_config(tie_word_embeddings=False))
    targets = {"target_modules": ["q_proj", "lm_head"], "init_lora_weights": False}
    whole = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    config = peft.LoraConfig(r=4, task_type="CAUSAL_LM", **(targets if how == "lora" else whole))
    model = peft.get_peft_model(model, config).train()
    rows = batch_of(tokenizer, ["a sentence to learn", "and one more"])
    loss = model(**rows).loss
    logits = model(**rows, return_logits=True).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows["labels"][:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    head = {name: p for name, p in model.named_parameters() if p.requires_grad and "lm_head" in name}
    got = torch.autograd.grad(loss, head.values())
    for name, gradient, expected_gradient in zip(head, got, torch.autograd.grad(expected, head.values())):
        assert expected_gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("own", [{"expert_capacity": 3}, {"router_bias_update_rate": 0.01}], ids=["capacity", "bias"])
def test_lora_on_a_router_trains_and_merges(tiny_moe_config, tokenizer, own):
    config = tiny_moe_config(vocab_size=len(tokenizer), mlp_pattern=["dense", "sparse"], **own)
    base = anyformer.AnyformerMoeForCausalLM(config).double()
    rows = batch_of(tokenizer, ["a sentence to learn", "and one more"])
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["gate.weight"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    losses = fit(model, rows, steps=5, lr=3e-2)
    assert losses[-1] < losses[0]
    (lora_B,) = (p for name, p in model.named_parameters() if "gate.lora_B" in name)
    assert lora_B.abs().max() > 0
    with torch.no_grad():
        expected = model.eval()(**rows).logits
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged(**rows).logits, expected, atol=1e-9, rtol=0)  # float64: sums in another order


@torch.no_grad()
@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_on_one_end_of_a_tied_model_changes_that_end_alone_when_it_is_merged(target, tiny_config, tmp_path):
    base = AnyformerDecoderForCausalLM(tiny_config(tie_word_embeddings=True))
    base.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=[target])).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    merge(str(tmp_path / "adapter"), tmp_path / "merged")
    ids = torch.arange(1, 9)[None]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(ids).logits, model(ids).logits, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_learned_prompt_is_not_merged(tiny_config, tmp_path):
    AnyformerDecoderForCausalLM(tiny_config()).save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    peft.get_peft_model(base, settings).save_pretrained(tmp_path / "prompt")
    with pytest.raises(UserError, match="is an adapter of peft_type=PROMPT_TUNING, which adds to no weight"):
        merge(str(tmp_path / "prompt"), tmp_path / "merged")


TASKS = {"SEQ_CLS": AutoModelForSequenceClassification, "TOKEN_CLS": AutoModelForTokenClassification}


def adapter_of_task(base, task, folder):
    base.save_pretrained(folder / "base")
    base = TASKS[task].from_pretrained(folder / "base", num_labels=5)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type=task, target_modules=["q_proj"])).eval()
    model.save_pretrained(folder / "adapter")
    return model


@torch.no_grad()
@pytest.mark.parametrize("task", TASKS)
def test_a_head_that_peft_put_on_a_language_model_is_loaded_and_merged_with_its_classes(task, tiny_config, tmp_path):
    model = adapter_of_task(AnyformerDecoderForCausalLM(tiny_config()), task, tmp_path)
    merge(str(tmp_path / "adapter"), tmp_path / "merged")
    ids = torch.arange(1, 9)[None]
    for found in (load_model(TASKS[task], tmp_path / "adapter"), TASKS[task].from_pretrained(tmp_path / "merged")):
        torch.testing.assert_close(found.eval()(ids).logits, model(ids).logits, atol=TOLERANCE, rtol=TOLERANCE)


def test_what_peft_did_not_save_with_a_head_is_named(tiny_encoder_config, tmp_path):
    adapter_of_task(AnyformerEncoderForMaskedLM(tiny_encoder_config()), "SEQ_CLS", tmp_path)
    with pytest.raises(UserError, match=r"neither it nor its base .* has the weight model\.pooler\.dense\.bias"):
        merge(str(tmp_path / "adapter"), tmp_path / "merged")
