"""How the experts' products are computed: one expert after the other, or all in one grouped product.

Shapes as in experts.py. `anyformer_grouped` is ours and the default: tokens are sorted by expert once, two grouped
products run, and nothing is read back to the host. transformers' `grouped_mm` and `batched_mm` work, too.
"""

import torch
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from .experts_sizes import CHANNELS, odd_sizes

IMPLEMENTATION = "anyformer_grouped"


def best_implementation(config, requested: str | None) -> str | None:
    """`requested`; if it is None and the model has experts, ours.

    Raises ValueError where torch's own grouped product is requested and does not support the sizes.
    """
    if getattr(config, "num_experts", None) is None:
        return requested
    if requested is None:
        return IMPLEMENTATION
    odd = odd_sizes(config) if requested == "grouped_mm" else None
    if odd is not None:
        raise ValueError(
            f"experts_implementation='grouped_mm' needs multiples of {CHANNELS}, not {odd}; "
            f"'{IMPLEMENTATION}', 'batched_mm' and 'eager' do not"
        )
    return requested


def loop_over_experts(experts, x_ND, index_NK, weights_NK):
    """The reference: one expert after the other computes its tokens, whose indices are read on the host."""
    out_ND = torch.zeros_like(x_ND)
    for e in range(experts.num_experts):
        token, assignment = torch.where(index_NK == e)
        if not token.numel():
            continue
        biases = (up_bias(experts)[e], experts.down_proj_bias[e]) if experts.has_bias else (None, None)
        h_RI = activated(experts, functional.linear(x_ND[token], up_weight(experts)[e], biases[0]))
        y_RD = functional.linear(h_RI, experts.down_proj[e], biases[1])
        out_ND = out_ND.index_add(0, token, (y_RD * weights_NK[token, assignment, None]).to(out_ND.dtype))
    return out_ND


def up_weight(experts) -> torch.Tensor:
    """(E, I, D), or with a gate (E, 2 I, D)."""
    return experts.gate_up_proj if experts.has_gate else experts.up_proj


def up_bias(experts) -> torch.Tensor:
    """(E, I), or with a gate (E, 2 I)."""
    return experts.gate_up_proj_bias if experts.has_gate else experts.up_proj_bias


def activated(experts, x_SI):
    """Result of the first product, gated or not -> (S, I)."""
    return experts._apply_gate(x_SI) if experts.has_gate else experts.act_fn(x_SI)


class _Spread(torch.autograd.Function):
    """Tokens (N, D) -> the input of every assignment, sorted by expert (S, D).

    Its backward pass, like `_Collect`'s, is written out: autograd would add up the gradients of a token's assignments
    by scattering, which is slow on CPUs and in no fixed order on GPUs. A gather and a sum over K do the same.
    """

    @staticmethod
    def forward(ctx, x_ND, token_S, place_S):
        ctx.save_for_backward(place_S)
        ctx.tokens = x_ND.shape[0]
        return x_ND.index_select(0, token_S)

    @staticmethod
    def backward(ctx, grad_SD):
        (place_S,) = ctx.saved_tensors
        return grad_SD.index_select(0, place_S).unflatten(0, (ctx.tokens, -1)).sum(dim=1), None, None


class _Collect(torch.autograd.Function):
    """The output of every assignment, sorted by expert (S, D) -> their sums over each token's assignments (N, D)."""

    @staticmethod
    def forward(ctx, y_SD, token_S, place_S, tokens):
        ctx.save_for_backward(token_S)
        return y_SD.index_select(0, place_S).unflatten(0, (tokens, -1)).sum(dim=1)

    @staticmethod
    def backward(ctx, grad_ND):
        (token_S,) = ctx.saved_tensors
        return grad_ND.index_select(0, token_S), None, None, None


def grouped_product(x_SD, weight_EID, ends_E):
    """Rows of x, sorted by expert, times its transposed weights -> (S, I). ends_E: int32, where its rows end."""
    weight_EDI = weight_EID.transpose(-2, -1)
    aligned = weight_EID.shape[-1] % CHANNELS == 0 and weight_EID.shape[-2] % CHANNELS == 0
    aligned = aligned and weight_EID.dtype != torch.float64  # which torch's kernels do not support
    # Inductor supports grouped_mm for bf16 only.
    if aligned and (weight_EID.dtype == torch.bfloat16 or not torch.compiler.is_compiling()):
        product = getattr(functional, "grouped_mm", None) or torch._grouped_mm
        return product(x_SD, weight_EDI, offs=ends_E)
    return torch.ops.transformers.grouped_mm_fallback(x_SD, weight_EDI, offs=ends_E)


def grouped_experts(experts, x_ND, index_NK, weights_NK):
    """As `loop_over_experts`; sorted once, with two grouped products."""
    device_type = x_ND.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x_ND.dtype
    tokens, K = index_NK.shape
    expert_S, order_S = index_NK.flatten().sort(stable=True)
    token_S = order_S // K
    place_S = torch.empty_like(order_S).scatter_(0, order_S, torch.arange(order_S.numel(), device=order_S.device))
    experts_here = torch.arange(experts.num_experts, device=expert_S.device)
    ends_E = torch.searchsorted(expert_S, experts_here, right=True, out_int32=True)
    with torch.autocast(device_type, enabled=False):
        x_SD = _Spread.apply(x_ND.to(dtype), token_S, place_S)
        weights_S = weights_NK.to(dtype).flatten().index_select(0, order_S)
        elsewhere = getattr(experts, "_is_expert_parallel", False)
        if elsewhere:  # rows after the last end belong to other ranks' experts; grouped_mm leaves them unwritten
            elsewhere_S1 = (expert_S >= experts.num_experts)[:, None]
            x_SD = x_SD.masked_fill(elsewhere_S1, 0)
        h_SI = grouped_product(x_SD, up_weight(experts).to(dtype), ends_E)
        if elsewhere:
            h_SI = h_SI.masked_fill(elsewhere_S1, 0)
        if experts.has_bias:  # a product: a lookup's gradients would be added up in no fixed order
            of_S = (expert_S[:, None] == experts_here).to(dtype)
            h_SI = h_SI + of_S @ up_bias(experts).to(dtype)
        # The second product is linear, so the weights of the outputs can be applied before it.
        h_SI = activated(experts, h_SI) * weights_S[:, None]
        y_SD = grouped_product(h_SI, experts.down_proj.to(dtype), ends_E)
        if experts.has_bias:
            y_SD = y_SD + (of_S * weights_S[:, None]) @ experts.down_proj_bias.to(dtype)
        if elsewhere:
            y_SD = y_SD.masked_fill(elsewhere_S1, 0)
        return _Collect.apply(y_SD, token_S, place_S, tokens).to(x_ND.dtype)


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, grouped_experts)
