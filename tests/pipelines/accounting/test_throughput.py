"""FLOPs per token equal torch's own count; measuring the peak does not change a run."""

from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.accounting import flops
from anyformer.pipelines.accounting.flops import FlopCount, active_parameters, count_tokens, measured_flops
from anyformer.pipelines.precision import prefers_bf16
from family_variants import a_share
from native_models import native_config
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianMTModel,
    MixtralConfig,
    MixtralForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

import anyformer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TINY = SIZES | {"vocab_size": 97}
ENCODER, DECODER = BertConfig(**TINY), {"num_key_value_heads": 4, "tie_word_embeddings": False}
SEQ2SEQ = native_config("marian", decoder_layers=1, decoder_ffn_dim=64)
EXPERTS = DECODER | {"num_experts_per_tok": 2}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64), (3, 40)),
    # Modules that predict further ahead, with their layer and the head.
    "ahead": (
        anyformer.AnyformerDecoderForCausalLM,
        anyformer.AnyformerDecoderConfig(**TINY, **DECODER, num_nextn_predict_layers=2),
        (3, 40),
    ),
    "mixtral": (MixtralForCausalLM, MixtralConfig(**TINY, **EXPERTS, num_local_experts=4), (3, 40)),
    "moe": (anyformer.AnyformerMoeForCausalLM, anyformer.AnyformerMoeConfig(**TINY, **EXPERTS, num_experts=4), (3, 40)),
    "decoder": (anyformer.AnyformerDecoderForCausalLM, anyformer.AnyformerDecoderConfig(**TINY, **DECODER), (3, 40)),
    "encoder": (anyformer.AnyformerEncoderForMaskedLM, anyformer.AnyformerEncoderConfig(**TINY), (3, 40)),
    "seq2seq": (
        anyformer.AnyformerSeq2SeqForConditionalGeneration,
        anyformer.AnyformerSeq2SeqConfig(**TINY, decoder_start_token_id=0),
        (3, 17),
    ),
    # What the last layer of images leaves out goes by the pooler.
    **{
        f"vit {pooler}": (
            anyformer.AnyformerViTForImageClassification,
            anyformer.AnyformerViTConfig(**SIZES, image_size=16, patch_size=4, pooler_type=pooler),
            (3,),
        )
        for pooler in ("cls", "mean")
    },
    "bert": (BertForMaskedLM, ENCODER, (3, 40)),
    "bert of rows": (BertForSequenceClassification, ENCODER, (3,)),
    "marian": (MarianMTModel, SEQ2SEQ, (3, 17)),
}


def built(model_class, config):
    """The model on the backends whose products torch counts."""
    experts = {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}
    return model_class._from_config(config, attn_implementation="eager", **experts).train()


def counted_flops(model, batch) -> int:
    """FLOPs of one training step, counted by torch on eager attention (all pairs: the PaLM convention)."""
    with FlopCounterMode(display=False) as counter:
        model(**batch).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", a_share(MODELS, 3))
def test_flops_of_a_batch_are_those_that_torch_counts(name):
    model_class, config, labels = MODELS[name]
    model, is_image = built(model_class, config), name.startswith("vit")
    batch = {"pixel_values": torch.rand(3, 3, 16, 16)} if is_image else {"input_ids": torch.randint(3, 97, (3, 40))}
    batch["labels"] = torch.randint(0, 2, labels)
    # The pixels need no gradient, a third of the first product's work.
    counted = counted_flops(model, batch) + (2 * 3 * 16 * 48 * 32 if is_image else 0)
    with torch.device("meta"):
        without_weights = model_class(config)
    rel = 0.02 if name in ("bert", "bert of rows", "marian") else 0.01
    assert float(FlopCount(without_weights).of_batch(batch)) == pytest.approx(counted, rel=rel)
    if name in ("mixtral", "moe"):
        idle = 2 * 2 * 3 * 32 * 48  # layers, experts, matrices
        assert active_parameters(model) == sum(p.numel() for p in model.parameters()) - idle


@pytest.mark.parametrize("fields", [{}, {"num_hidden_groups": 1}, {"norm_position": "post"}])
def test_what_labelled_positions_alone_need_counts_for_those(fields):
    config = anyformer.AnyformerEncoderConfig(**TINY | {"vocab_size": 500, "intermediate_size": 128}, **fields)
    model, row = built(anyformer.AnyformerEncoderForMaskedLM, config), torch.ones(2, 40, dtype=torch.long)
    for labels in (row, torch.where(torch.arange(40) % 10 == 0, row, -100)):
        batch = {"input_ids": row, "labels": labels}
        assert int(FlopCount(model).of_batch(batch)) == pytest.approx(counted_flops(model, batch), rel=0.01)


def test_tokens_are_counted_without_padding():
    ids, mask = torch.ones(2, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    labels = torch.tensor([[4, -100, -100], [4, 4, 4]])
    decoder, pair = (SimpleNamespace(is_encoder_decoder=kind) for kind in (False, True))
    assert count_tokens({"input_ids": ids, "labels": labels}, decoder) == 10
    assert count_tokens({"input_ids": ids, "labels": labels, "attention_mask": mask}, decoder) == 7
    assert count_tokens({"input_ids": ids, "labels": labels, "attention_mask": mask}, pair) == 11


def test_measuring_the_peak_draws_nothing_from_the_runs_generator():
    state = torch.random.get_rng_state()
    assert measured_flops(torch.device("cpu"), torch.float32, seconds=0.05) > 1e8
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_card_has_the_peak_of_its_own_name(monkeypatch):
    """As the driver spells them; a card that no data sheet here is of is measured."""
    monkeypatch.setattr(flops, "measured_flops", lambda *arguments: 1.0)
    found = {}
    for name in ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA L40", "RTX A1000"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        found[name] = flops.peak_flops(torch.device("cuda"), torch.bfloat16)[0] / 1e12
    assert list(found.values()) == [989, 835, 312, 121, 1e-12, 1e-12]


@pytest.mark.parametrize(
    "capabilities, expected",
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"cpu_name": "AMD EPYC 9R14", "avx512_bf16": True}, True),
        ({"cpu_name": "AMD EPYC 7763", "avx512_bf16": False}, False),
        ({"architecture": "aarch64", "bf16": True}, False),  # not measured
        ({}, False),  # a torch that does not know its CPU
    ],
)
def test_a_cpu_computes_in_bf16_where_that_is_faster(monkeypatch, capabilities, expected):
    monkeypatch.setattr("anyformer.pipelines.precision.KNOWN_OF_CPU", capabilities)
    assert prefers_bf16("cpu") is expected


def test_a_switch_transformer_counts_one_expert_of_each_sparse_layer():
    fields = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 64}
    fields |= {"num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    model = SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**fields, num_experts=4))
    idle = 2 * 3 * 2 * 32 * 48  # stacks, experts, matrices
    assert active_parameters(model) == sum(p.numel() for p in model.parameters()) - idle
