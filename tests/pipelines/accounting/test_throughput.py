"""FLOPs per token equal torch's own count; measuring the peak does not change a run."""

from types import SimpleNamespace

import pytest
import torch
from anyformer.modeling.configuration_moe import AnyformerMoeConfig
from anyformer.pipelines.accounting import flops
from anyformer.pipelines.accounting.flops import (
    FlopCount,
    active_parameters,
    count_tokens,
    flops_per_token,
    measured_flops,
)
from anyformer.pipelines.accounting.precision import prefers_bf16
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    MixtralConfig,
    MixtralForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

from anyformer import AnyformerDecoderForCausalLM, AnyformerMoeForCausalLM


def counted_flops(model, length):
    """FLOPs of one training step per token, counted by torch on eager attention (all pairs: the PaLM convention)."""
    ids = torch.randint(3, model.config.vocab_size, (2, length))
    with FlopCounterMode(display=False) as counter:
        model.train()(ids, labels=ids).loss.backward()
    return counter.get_total_flops() / ids.numel()


def test_native_models_count_too():
    model = GPT2LMHeadModel._from_config(
        GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64), attn_implementation="eager"
    )
    assert flops_per_token(model, 48) == pytest.approx(counted_flops(model, 48), rel=0.01)


def test_modules_that_predict_further_ahead_count_with_their_layer_and_head(tiny_config):
    model = AnyformerDecoderForCausalLM._from_config(
        tiny_config(num_nextn_predict_layers=2), attn_implementation="eager"
    )
    assert flops_per_token(model, 48) == pytest.approx(counted_flops(model, 48), rel=0.01)


ENCODER = BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
SEQ2SEQ = MarianConfig(
    vocab_size=97,
    d_model=32,
    encoder_layers=2,
    decoder_layers=1,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=64,
    pad_token_id=0,
    decoder_start_token_id=0,
)


@pytest.mark.parametrize(
    "model_class, config, labels",
    [
        (BertForMaskedLM, ENCODER, (3, 40)),
        (BertForSequenceClassification, ENCODER, (3,)),
        (MarianMTModel, SEQ2SEQ, (3, 17)),
    ],
)
def test_batches_of_encoders_and_encoder_decoders_count_too(model_class, config, labels):
    model = model_class._from_config(config, attn_implementation="eager")
    batch = {"input_ids": torch.randint(3, 97, (3, 40)), "labels": torch.randint(0, 2, labels)}
    with FlopCounterMode(display=False) as counter:
        model.train()(**batch).loss.backward()
    assert FlopCount(model).of_batch(batch) == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("fields", [{}, {"num_hidden_groups": 1}, {"norm_position": "post"}])
def test_what_labelled_positions_alone_need_counts_for_those(fields):
    from anyformer import AnyformerEncoderConfig, AnyformerEncoderForMaskedLM

    sizes = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AnyformerEncoderConfig(intermediate_size=128, **sizes, **fields)
    model = AnyformerEncoderForMaskedLM._from_config(config, attn_implementation="eager")
    row = torch.ones(2, 40, dtype=torch.long)
    few = torch.where(torch.arange(40) % 10 == 0, row, -100)
    for labels in (row, few):
        batch = {"input_ids": row, "labels": labels}
        with FlopCounterMode(display=False) as counter:
            model.train()(**batch).loss.backward()
        assert int(FlopCount(model).of_batch(batch)) == pytest.approx(counter.get_total_flops(), rel=0.01)


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
    monkeypatch.setattr("anyformer.pipelines.accounting.precision.KNOWN_OF_CPU", capabilities)
    assert prefers_bf16("cpu") is expected


TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def test_of_experts_those_that_see_a_token_count():
    tiny = TINY | {"num_key_value_heads": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    backends = {"attn_implementation": "eager", "experts_implementation": "eager"}  # whose products torch counts
    for model in (
        MixtralForCausalLM._from_config(MixtralConfig(**tiny, num_local_experts=4), **backends),
        AnyformerMoeForCausalLM._from_config(AnyformerMoeConfig(**tiny, num_experts=4), **backends),
    ):
        assert flops_per_token(model, 48) == pytest.approx(counted_flops(model, 48), rel=0.01)
        idle = 2 * 2 * 3 * 32 * 48  # layers, experts, matrices
        assert active_parameters(model) == sum(p.numel() for p in model.parameters()) - idle


def test_a_switch_transformer_counts_one_expert_of_each_sparse_layer():
    fields = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 64}
    fields |= {"num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    model = SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**fields, num_experts=4))
    idle = 2 * 3 * 2 * 32 * 48  # stacks, experts, matrices
    assert active_parameters(model) == sum(p.numel() for p in model.parameters()) - idle
