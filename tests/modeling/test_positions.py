"""Laws of the position schemes: each equals transformers' own maths, or the paper's."""

import warnings

import pytest
import torch
from anyformer.modeling.block import RMSNorm
from anyformer.modeling.positions_absolute import SinusoidalPositions
from anyformer.modeling.positions_scores import AlibiBias, RelativePositionBias
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-6


@given(buckets=st.sampled_from([8, 16, 32]), factor=st.integers(1, 20), longest=st.integers(1, 400))
def test_relative_buckets_are_t5s(buckets, factor, longest):
    from anyformer import AnyformerDecoderConfig

    config = AnyformerDecoderConfig(
        position_encoding="relative",
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=buckets // 2 + factor,
    )
    distances = torch.arange(-5, longest)
    expected = T5Attention._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=buckets, max_distance=buckets // 2 + factor
    )
    assert torch.equal(RelativePositionBias(config).buckets(distances), expected)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20, 112])
def test_alibi_slopes_are_blooms_for_every_head_count(tiny_config, heads):
    scheme = AlibiBias(tiny_config(num_attention_heads=heads, num_key_value_heads=heads, head_dim=8))
    # (heads, 1, 2): slope times key position
    native = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    torch.testing.assert_close(scheme.slopes, native[:, 0, 1])


@pytest.mark.parametrize("size", [32, 33])
def test_sinusoids_are_marians_at_every_position_and_need_no_table(tiny_config, size):
    scheme = SinusoidalPositions(tiny_config(hidden_size=size, head_dim=8, num_attention_heads=4))
    native = MarianSinusoidalPositionalEmbedding(500, size)
    native.weight.data = native.create_weight()
    got = scheme(torch.zeros(1, 500, size), torch.arange(500)[None])
    # Marian computes the angles in float64, we in float32: at position 500 that is 3e-5 of a radian.
    torch.testing.assert_close(got, native(torch.Size([1, 500]))[None], atol=5e-5, rtol=0)


CHUNKED = {"attention_pattern": ["chunked_attention", "full_attention"], "attention_chunk_size": 4}
SLIDING = {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 4}


@pytest.mark.parametrize("pattern", [CHUNKED, SLIDING], ids=["chunked", "sliding"])
@pytest.mark.parametrize("unrotated", [0, 1])
def test_null_parameters_leave_each_kind_of_layer_without_positions_as_its_index_does(tiny_config, pattern, unrotated):
    kinds = pattern["attention_pattern"]
    ropes = {kinds[unrotated]: None, kinds[1 - unrotated]: {"rope_type": "default", "rope_theta": 100.0}}
    by_kind = tiny_config(**pattern, rope_parameters=ropes)
    flat = {"rope_parameters": ropes[kinds[1 - unrotated]], "no_rope_layers": [int(i != unrotated) for i in (0, 1)]}
    by_index = tiny_config(**pattern, **flat)
    assert by_kind.no_rope_layers == by_index.no_rope_layers
    torch.manual_seed(0)
    model, ids = AnyformerDecoderForCausalLM(by_kind).eval(), torch.arange(3, 20)[None]
    other = AnyformerDecoderForCausalLM(by_index).eval()
    other.load_state_dict(model.state_dict())
    logits = model(ids).logits
    assert torch.equal(logits, other(ids).logits)
    by_index.no_rope_layers = None
    other = AnyformerDecoderForCausalLM(by_index).eval()
    other.load_state_dict(model.state_dict())
    assert (logits - other(ids).logits).abs().max() > 1e-4


@pytest.mark.parametrize("scheme", ["learned", "sinusoidal"])
def test_positions_of_queries_and_keys_reach_no_value_and_those_of_layers_reach_every_layer(tiny_config, scheme):
    """A row of one token attends to its value alone; of two layers the second hears of positions again."""
    ids, here, there = torch.tensor([[5]]), torch.tensor([[0]]), torch.tensor([[9]])
    config = tiny_config(position_encoding=scheme, position_at="queries_keys")
    model = AnyformerDecoderForCausalLM(config).eval()
    assert torch.equal(model(ids, position_ids=here).logits, model(ids, position_ids=there).logits)
    ids, config.position_at = torch.arange(3, 12)[None], "layers"
    model = AnyformerDecoderForCausalLM(config).eval()
    added, inputs = model.model.positions(model.model.embed_tokens(ids), torch.arange(9)[None]), []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        layer.register_forward_hook(lambda module, args, out: inputs.append(out))
    model(ids)
    torch.testing.assert_close(inputs[0], model.model.embed_tokens(ids) + added)
    torch.testing.assert_close(inputs[2], inputs[1] + added)


def both(size=6):
    ours, theirs = RMSNorm(size, eps=1e-5), nn.RMSNorm(size, eps=1e-5)
    with torch.no_grad():
        ours.weight.normal_(generator=torch.Generator().manual_seed(0))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("training", [True, False])
def test_half_inputs_under_fp32_weights_are_normalised_in_fp32_without_a_warning(training):
    ours, theirs = both()
    x = torch.randn(4, 6).to(torch.bfloat16).requires_grad_()
    with warnings.catch_warnings(), torch.set_grad_enabled(training):
        warnings.simplefilter("error")
        out = ours(x)
    exact = x.detach().float().requires_grad_()
    expected = theirs(exact)
    assert out.dtype == torch.bfloat16 and torch.equal(out, expected.to(torch.bfloat16))
    if training:
        out.float().sum().backward()
        expected.sum().backward()
        assert x.grad.dtype == torch.bfloat16 and ours.weight.grad.dtype == torch.float32
        torch.testing.assert_close(x.grad.float(), exact.grad, atol=1e-2, rtol=1e-2)  # the gradient has 8 bits
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, atol=1e-5, rtol=1e-5)


def test_both_derivatives_of_a_norm_are_those_of_torchs():
    ours, theirs = (norm.double() for norm in both())
    x, grad = torch.randn(2, 3, 6, dtype=torch.double, requires_grad=True), torch.randn(2, 3, 6).double()
    found = []
    for norm in (ours, theirs):
        inputs, y = (x, norm.weight), norm(x)
        first = torch.autograd.grad((y * grad).sum(), inputs, create_graph=True)
        assert "RMSNorm" in y.grad_fn.name() or norm is theirs
        found.append([y, *first, *torch.autograd.grad(sum(each.square().sum() for each in first), inputs)])
    torch.testing.assert_close(*found)
