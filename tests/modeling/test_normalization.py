"""RMSNorm is torch's, with a gradient that reads its input fewer times."""

import warnings

import pytest
import torch
from anyformer.modeling.normalization import RMSNorm
from torch import nn

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def both(size=6, dtype=torch.float64):
    ours, theirs = RMSNorm(size, eps=1e-5), nn.RMSNorm(size, eps=1e-5)
    with torch.no_grad():
        ours.weight.normal_(generator=torch.Generator().manual_seed(0))
    theirs.load_state_dict(ours.state_dict())
    return ours.to(dtype), theirs.to(dtype)


@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 4, 6)])
def test_values_and_gradients_are_torchs(shape):
    ours, theirs = both()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(shape, dtype=torch.float64)
    out, expected = ours(x), theirs(x)
    torch.testing.assert_close(out, expected, **EXACT)
    with torch.no_grad():
        assert torch.equal(ours(x), out)
    for got, exact in zip(
        torch.autograd.grad(out, (x, ours.weight), direction),
        torch.autograd.grad(expected, (x, theirs.weight), direction),
    ):
        torch.testing.assert_close(got, exact, **EXACT)


def test_gradients_of_gradients_are_torchs():
    ours, theirs = both()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for norm in (ours, theirs):
        (gradient,) = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), (x, norm.weight)))
    for got, exact in zip(*found):
        torch.testing.assert_close(got, exact, **EXACT)


def test_only_what_is_trained_gets_a_gradient():
    ours, _ = both()
    x = torch.randn(3, 6, dtype=torch.float64)
    ours(x).sum().backward()
    assert ours.weight.grad is not None
    ours.weight.grad = None
    ours.weight.requires_grad_(False)
    ours(x.requires_grad_()).sum().backward()
    assert x.grad is not None and ours.weight.grad is None


@pytest.mark.parametrize("training", [True, False])
def test_half_inputs_under_fp32_weights_are_normalised_in_fp32_without_a_warning(training):
    ours, theirs = both(dtype=torch.float32)
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
