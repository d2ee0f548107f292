"""Linear layer + cross-entropy without the [tokens, vocabulary] logits.

N tokens, D hidden size, V vocabulary. The logits are made for some rows at a time and turned into gradients of
hidden states and weight at once, so memory grows with rows x V, not with N x V.
"""

import torch
from torch.autograd.function import once_differentiable

IGNORE_INDEX = -100
# 2^24 fp32 logits (64 MB): small enough for any machine; below it, chunking only costs time (measured on CPU).
LOGITS_PER_CHUNK = 1 << 24


class _LinearCrossEntropySum(torch.autograd.Function):
    """sum over i of -log softmax(x_i W^T)[y_i], with both gradients made in the forward pass (same three products)."""

    @staticmethod
    def forward(ctx, x_ND, weight_VD, labels_N, rows, softcap):
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad_x = torch.empty_like(x_ND) if needs_x else None
        # fp32 even for bf16 operands: it is summed over all chunks.
        grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32) if needs_weight else None
        total = x_ND.new_zeros((), dtype=torch.float32)
        for start in range(0, x_ND.shape[0], rows):
            x, labels = x_ND[start : start + rows], labels_N[start : start + rows]
            counted = labels != IGNORE_INDEX
            target = torch.where(counted, labels, 0)[:, None]
            logits = (x @ weight_VD.t()).float()
            if softcap is not None:
                squashed = logits.div_(softcap).tanh_()
                slope = 1 - squashed.square() if needs_x or needs_weight else None
                logits = squashed.mul_(softcap)
            log_normaliser = logits.logsumexp(dim=-1)
            total += ((log_normaliser - logits.gather(1, target)[:, 0]) * counted).sum()
            if needs_x or needs_weight:
                grad = logits.sub_(log_normaliser[:, None]).exp_()  # softmax - one-hot, in the logits' memory
                grad.scatter_add_(1, target, torch.full_like(grad[:, :1], -1.0))
                if softcap is not None:
                    grad = grad.mul_(slope)
                grad = grad.mul_(counted[:, None]).to(x.dtype)
                if needs_x:
                    torch.mm(grad, weight_VD, out=grad_x[start : start + rows])
                if needs_weight:
                    grad_weight += grad.t() @ x
        ctx.save_for_backward(grad_x, grad_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total):
        grad_x, grad_weight = ctx.saved_tensors
        grad_x = None if grad_x is None else grad_x * grad_total.to(grad_x.dtype)
        grad_weight = None if grad_weight is None else grad_weight * grad_total
        return grad_x, grad_weight, None, None, None


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    logits_per_chunk: int = LOGITS_PER_CHUNK,
    softcap: float | None = None,
) -> torch.Tensor:
    """Cross-entropy of `hidden @ weight.T` against `labels`, in fp32, as a scalar.

    Args:
        hidden: (N, D). weight: (V, D). labels: (N,), already aligned with `hidden`; -100 is not counted.
        num_items_in_batch: the sum is divided by it; None: by the number of counted labels (mean).
        logits_per_chunk: most logits held at a time.
        softcap: the logits z become softcap * tanh(z / softcap) first.

    Under autocast the products run in the autocast dtype, as those of a Linear layer do.
    """
    device_type = hidden.device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    rows = max(1, logits_per_chunk // weight.shape[0])
    with torch.autocast(device_type, enabled=False):
        total = _LinearCrossEntropySum.apply(hidden, weight, labels, rows, softcap)
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORE_INDEX).sum()
    elif torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


def shift_left(labels: torch.Tensor) -> torch.Tensor:
    """(B, T) labels aligned with the inputs -> (B, T) labels aligned with the predictions: token t + 1 at t."""
    return torch.nn.functional.pad(labels, (0, 1), value=IGNORE_INDEX)[..., 1:]
