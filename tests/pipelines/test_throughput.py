"""FLOPs per token are those torch counts; asking for the peak disturbs nothing."""

import pytest
import torch
from anyformer.pipelines.throughput import cpu_flags, flops_per_token, measured_flops, multiplied_weights, prefers_bf16
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

from anyformer import AnyformerDecoderForCausalLM


def counted_flops(model, length):
    """FLOPs of one training step per token, counted by torch on eager attention (all pairs: the PaLM convention)."""
    ids = torch.randint(3, model.config.vocab_size, (2, length))
    with FlopCounterMode(display=False) as counter:
        model.train()(ids, labels=ids).loss.backward()
    return counter.get_total_flops() / ids.numel()


@pytest.mark.parametrize("glu", ["glu", "mlp"])
@pytest.mark.parametrize("tied", [True, False])
def test_flops_per_token_equal_what_torch_counts(tiny_config, glu, tied):
    config = tiny_config(mlp_type=glu, tie_word_embeddings=tied, intermediate_size=64, num_hidden_layers=3)
    model = AnyformerDecoderForCausalLM._from_config(config, attn_implementation="eager")
    assert flops_per_token(model, 48) == pytest.approx(counted_flops(model, 48), rel=0.01)


def test_native_models_count_too():
    model = GPT2LMHeadModel._from_config(
        GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64), attn_implementation="eager"
    )
    assert flops_per_token(model, 48) == pytest.approx(counted_flops(model, 48), rel=0.01)


def test_look_ups_are_not_multiplications(tiny_config):
    small, large = (AnyformerDecoderForCausalLM(tiny_config(vocab_size=v)) for v in (100, 200))
    assert multiplied_weights(large) - multiplied_weights(small) == 100 * 32  # the head's rows, once


def test_measuring_the_peak_draws_nothing_from_the_runs_generator():
    state = torch.random.get_rng_state()
    assert measured_flops(torch.device("cpu"), torch.float32, seconds=0.05) > 1e8
    assert torch.equal(state, torch.random.get_rng_state())


def test_bf16_is_chosen_by_instruction_set_and_the_same_every_time():
    assert {prefers_bf16("cpu") for _ in range(3)} <= {True, False}
    if cpu_flags():
        expected = bool(cpu_flags().get("amx_bf16") or cpu_flags().get("avx512_bf16"))
        assert prefers_bf16("cpu") == expected
