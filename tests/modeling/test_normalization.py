"""RMSNorm takes inputs and weights of two types."""

import warnings

import pytest
import torch
from anyformer.modeling.block import RMSNorm
from torch import nn


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
