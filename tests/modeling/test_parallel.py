"""Split over processes by transformers' own plans, a model computes what it computes whole; experts are shared, too."""

import re

import pytest
import torch
from family_variants import DECODERS, ENCODERS, SEQ2SEQS, TINY_FIELDS, config_class, positions_of, tokens
from packaging.version import Version
from processes import in_fresh_process, run_ranks
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    __version__,
)
from transformers.distributed import DistributedConfig

from anyformer import (
    AnyformerDecoderForCausalLM,
    AnyformerEncoderForMaskedLM,
    AnyformerEncoderForSequenceClassification,
    AnyformerMoeForCausalLM,
    AnyformerSeq2SeqForConditionalGeneration,
)

TOLERANCE = 1e-5  # fp32; sums over ranks are taken in another order

RECENT = Version(__version__) >= Version("5.23")
# A vocabulary that does not divide by the ranks; transformers 5.17 refuses it with a sentence of its own.
ODD = 95 if RECENT else 96

NAMES = ("rotary", "learned", "post", "mha-bias", "relative", "sliding-and-full-own-theta")
VARIANTS = {name: DECODERS[name] for name in NAMES}
VARIANTS |= {
    "untied-qk-norm": {"tie_word_embeddings": False, "qk_norm": True},
    "value-residual": {"value_residual": True},
    "alibi-odd-vocabulary": {"position_encoding": "alibi", "vocab_size": ODD},
    "softcapped-scaled": {"final_logit_softcapping": 5.0, "embedding_multiplier": 3.0},
}
SIZES = {"num_experts": 4, "intermediate_size": 48, "router_aux_loss_coef": 0.1}
MIXTURES = {
    "mixtral": SIZES,
    "shared-sigmoid-dense-first": SIZES
    | {"num_experts_per_tok": 3, "router_scoring": "sigmoid", "routed_scaling_factor": 2.5, "num_hidden_layers": 3}
    | {"mlp_pattern": ["dense", "sparse", "sparse"], "moe_intermediate_size": 32}
    | {"shared_expert_intermediate_size": 16, "shared_expert_gate": True},
    "plain-experts": SIZES | {"mlp_type": "mlp", "hidden_act": "gelu", "router_z_loss_coef": 0.1, "qk_norm": True},
}
FEW = {"mixtral": MIXTURES["mixtral"]}
SWITCH = {"num_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": False, "mlp_pattern": ["dense", "sparse"]}
SWITCH |= SEQ2SEQS["t5"] | {"intermediate_size": 48, "expert_capacity": 5}
MODES = {
    "tp": lambda: {"distributed_config": DistributedConfig(tp_size=2)},
    "tp-auto": lambda: {"tp_plan": "auto"},
    "fsdp": lambda: {"distributed_config": DistributedConfig(fsdp_size=2)},
    "pp": lambda: {"distributed_config": DistributedConfig(pp_size=2)},
    "ep": lambda: {"distributed_config": DistributedConfig(fsdp_size=2, ep_size=2)},
    "ep-of-one-batch": lambda: {"distributed_config": DistributedConfig(tp_size=2, ep_size=2)},
    "tp-and-fsdp": lambda: {"distributed_config": DistributedConfig(tp_size=2, fsdp_size=2)},
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor gathered from all ranks, where it is spread over them."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.detach().clone()


def causal_batch() -> tuple:
    ids = torch.randint(3, 95, (2, 24), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, 5:9] = -100
    return {"input_ids": ids}, labels, {"input_ids": ids, "position_ids": positions_of([10, 14]).expand(2, -1)}


def masked_batch() -> tuple:
    ids = tokens(vocab=95)
    labels = ids.masked_fill(torch.arange(24) % 6 != 1, -100)
    packed = {"input_ids": ids, "position_ids": positions_of([10, 14]).expand(2, -1)}
    return {"input_ids": ids, "attention_mask": (torch.arange(24) < torch.tensor([[24], [20]])).long()}, labels, packed


def classified_batch() -> tuple:
    batch, _, packed = masked_batch()
    return batch, torch.tensor([0, 1]), packed


def translated_batch() -> tuple:
    source, labels = tokens(2, 12, vocab=95), tokens(2, 9, vocab=95, seed=1)
    labels[:, 7:] = -100
    packed = {"position_ids": positions_of([5, 7]), "decoder_position_ids": positions_of([4, 5])}
    packed = {name: positions.expand(2, -1) for name, positions in packed.items()}
    packed |= {"input_ids": source, "decoder_input_ids": tokens(2, 9, vocab=95, seed=1)}
    batch = {"input_ids": source, "attention_mask": (torch.arange(12) < torch.tensor([[12], [9]])).long()}
    return batch, labels, packed


# The class that is split, how it is loaded, and a function for: what it reads, what it predicts, and packed rows.
MODELS = {
    "decoder": (AnyformerDecoderForCausalLM, AutoModelForCausalLM, causal_batch),
    "moe": (AnyformerMoeForCausalLM, AutoModelForCausalLM, causal_batch),
    "encoder": (AnyformerEncoderForMaskedLM, AutoModelForMaskedLM, masked_batch),
    "classifier": (AnyformerEncoderForSequenceClassification, AutoModelForSequenceClassification, classified_batch),
    "seq2seq": (AnyformerSeq2SeqForConditionalGeneration, AutoModelForSeq2SeqLM, translated_batch),
}


def config_of(kind: str, fields: dict):
    family = "encoder" if kind == "classifier" else kind
    return config_class(family)(**TINY_FIELDS[family] | fields)


def measure(model, kind: str, training=True, rows=slice(None)) -> dict:
    """What must not depend on how the model is split. Training sees `rows` of the batch only (data parallelism)."""
    batch, labels, packed = MODELS[kind][2]()
    model.eval()
    with torch.no_grad():
        decoder = {"decoder_input_ids": packed["decoder_input_ids"]} if kind == "seq2seq" else {}
        found = {"logits": whole(model(**batch, **decoder).logits), "packed": whole(model(**packed).logits)}
        if model.can_generate():
            prompt = batch if kind == "seq2seq" else {"input_ids": batch["input_ids"][:, :6]}
            found["tokens"] = model.generate(**prompt, max_new_tokens=8, do_sample=False)
        if training:
            found["evaluated"] = whole(model(**batch, labels=labels).loss)
    if training:
        model.train()
        loss = model(**{name: x[rows] for name, x in batch.items()}, labels=labels[rows]).loss
        loss.backward()
        found |= {f"gradient {name}": whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        counted = model(**batch, labels=labels, num_items_in_batch=torch.tensor(57)).loss
        found |= {"counted": whole(counted)}
        if rows == slice(None):
            found["loss"] = whole(loss)
    return found


def measure_on_rank(folders: dict, mode: str, kind: str) -> dict:
    found = {}
    for name, folder in folders.items():
        model = MODELS[kind][1].from_pretrained(folder, **MODES[mode]())
        distributed = model.config.distributed_config
        # Ranks of one data-parallel group see different rows, and FSDP averages their gradients.
        data_rank = torch.distributed.get_rank() // distributed.tp_size if distributed.fsdp_size > 1 else None
        rows = slice(None) if data_rank is None else slice(data_rank, data_rank + 1)
        found[name] = measure(model, kind, training=distributed.pp_size == 1, rows=rows)
        if mode == "tp":
            model.save_pretrained(f"{folder}-again")
    return found


def check_split_equals_whole(tmp_path, mode, variants, ranks=2, kind="decoder"):
    folders, expected = {}, {}
    for name, fields in variants.items():
        folders[name] = tmp_path / name
        model = MODELS[kind][0](config_of(kind, {"vocab_size": 96} | fields))
        model.save_pretrained(folders[name])
        expected[name] = measure(model, kind)
    for rank, found in enumerate(run_ranks(ranks, measure_on_rank, folders, mode, kind, folder=tmp_path)):
        for name in variants:
            assert found[name], name
            gradients = {key for key in expected[name] if key.startswith("gradient")}
            assert gradients <= found[name].keys() or not gradients & found[name].keys(), name
            for key, value in found[name].items():
                message = f"{name}, rank {rank}, {key}: {{}}".format
                torch.testing.assert_close(value, expected[name][key], atol=TOLERANCE, rtol=0, msg=message)
    if mode == "tp":  # what split models save is whole
        for name, folder in folders.items():
            again = MODELS[kind][1].from_pretrained(f"{folder}-again")
            torch.testing.assert_close(measure(again, kind, training=False)["logits"], expected[name]["logits"])


ENCODER = ("bert", "albert", "deberta_v3", "longformer", "modernbert", "rotary")
SPLIT = {
    "decoder": VARIANTS,
    "moe": MIXTURES,
    "encoder": {name: ENCODERS[name] for name in ENCODER} | {"odd vocabulary": {"vocab_size": ODD}},
    "classifier": {name: ENCODERS[name] for name in ("bert", "modernbert")},
    "seq2seq": {name: SEQ2SEQS[name] for name in ("original", "t5", "umt5", "bart", "rotary", "deep_decoder")}
    | {"switch": SWITCH},
}
needs_experts = pytest.mark.skipif(not RECENT, reason="transformers 5.17 splits experts by plans of other names")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tp", "fsdp"])
@pytest.mark.parametrize("kind", SPLIT)
@in_fresh_process
def test_two_processes_have_the_logits_losses_gradients_and_tokens_of_one(tmp_path, kind, mode):
    check_split_equals_whole(tmp_path, mode, FEW if (kind, mode) == ("moe", "fsdp") else SPLIT[kind], kind=kind)


@pytest.mark.slow
@needs_experts
@pytest.mark.parametrize("kind, variants", [("moe", MIXTURES), ("seq2seq", {"switch": SWITCH})])
def test_ranks_that_share_experts_have_the_logits_losses_gradients_and_tokens_of_one(tmp_path, kind, variants):
    check_split_equals_whole(tmp_path, "ep", variants, kind=kind)


@needs_experts
def test_ranks_that_share_experts_and_the_batch_equal_one_process(tmp_path):
    check_split_equals_whole(tmp_path, "ep-of-one-batch", FEW, kind="moe")


@pytest.mark.slow
def test_the_automatic_tensor_parallel_plan_is_the_declared_one(tmp_path):
    check_split_equals_whole(tmp_path, "tp-auto", {"rotary": {}})


@pytest.mark.slow
def test_two_pipeline_stages_have_the_logits_and_tokens_of_one_process(tmp_path):
    """Where a pipeline plan is declared; transformers' own pipeline computes no loss."""
    declared = {name: f for name, f in VARIANTS.items() if config_of("decoder", f).base_model_pp_plan is not None}
    assert set(VARIANTS) - set(declared) == {"learned", "softcapped-scaled", "value-residual"}
    check_split_equals_whole(tmp_path, "pp", declared)


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in SPLIT for name in SPLIT[kind]])
def test_plans_name_modules_that_exist(kind, name):
    """Transformers warns of rules that match nothing; serving tools fail on them."""
    model = MODELS[kind][0](config_of(kind, SPLIT[kind][name]))
    parts = {*(n for n, _ in model.named_modules()), *(n for n, _ in model.named_parameters())}
    modules = {re.sub(r"\.\d+", ".*", part) for part in parts}
    assert model.tp_plan.keys() <= modules and ("lm_head" in model.tp_plan) == hasattr(model, "lm_head")
    stacks = ("encoder.", "decoder.") if kind == "seq2seq" else ("",)
    assert {f"model.{stack}layers.*" for stack in stacks} <= model._fsdp_plan.keys()
    if kind in ("decoder", "moe"):
        assert (model.pp_plan or {}).keys() <= modules
    else:  # transformers' pipeline runs causal models only: it reads `past_key_values` of a head
        assert not model.pp_plan
    if RECENT and kind == "moe":
        assert model.ep_plan.keys() <= modules and {key.rsplit(".", 1)[1] for key in model.ep_plan} >= {"experts"}
    # Every matrix of a layer is split, but attention whose score bias holds all heads on every rank.
    biased = ("alibi", "relative") if kind == "decoder" else ("relative", "disentangled")
    whole_heads = model.config.position_encoding in biased or "longformer" in name
    part = r"layers\.\*\.(self_attn|cross_attn|mlp)\.(experts\.|shared_expert\.)?[a-z_]+_proj$"
    split = {module for module in modules if re.search(part, module)}
    assert split and {m for m in split if ".mlp." in m or not whole_heads} <= model.tp_plan.keys()
