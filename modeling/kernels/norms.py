"""RMSNorm with a backward pass for CPUs, on which torch's own is a dozen passes over the input (torch 2.11 to 2.15).

Compiled or on a GPU torch's is one kernel. The package's models take this one; a folder from the Hub has torch's.
"""

import torch
from torch.nn import functional


def rms_norm(x, shape, weight, eps: float):
    """`torch.nn.functional.rms_norm` over the last axis: (..., D), (D,) -> (..., D), the same to the last bit."""
    is_trained = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad) and not torch.jit.is_tracing()
    is_one_kernel = not x.is_cpu or x.itemsize < 4 or torch.compiler.is_compiling()
    if not is_trained or is_one_kernel or torch.overrides.has_torch_function((x,)):
        return functional.rms_norm(x, shape, weight, eps)
    return _RMSNorm.apply(x, weight, eps)


class _RMSNorm(torch.autograd.Function):
    """With s = 1 / sqrt(mean(x^2) + eps): y = s w x has the gradients dw = sum of s g x over rows, and
    dx = s w g - s^3 x mean(w g x). s is made anew in the backward pass, which so has a derivative, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight, eps):
        return functional.rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square().div_(x.shape[-1]).add_(ctx.eps).rsqrt_()
        rows, grad_weight = (grad * x).flatten(0, -2), None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.mv(rows.t(), scale.flatten())
        along_x = torch.mv(rows, weight).view_as(scale) * scale**3 / x.shape[-1]
        return torch.addcmul(grad * weight * scale, x, along_x, value=-1), grad_weight, None
