"""Linear layer + cross-entropy without the [tokens, vocabulary] logits.

N tokens, R rows of them at a time, D hidden size, V vocabulary. The logits of R rows are made, turned into gradients of
hidden states and weight at once, and dropped, so memory grows with R x V, not with N x V. Or, on a CPU where weights or
products are bf16, those of C words of the vocabulary at a time, which are made twice.
"""

import re

import torch
from torch.autograd.function import once_differentiable

from .products import SLOW_ON_CPU

IGNORE_INDEX = -100
# Unless the caller sets a limit, a chunk takes an eighth of what all logits would take in fp32, or this many bytes if
# that is more: below, chunking saves no memory that matters, and products of few rows are slow.
CHUNK_SHARE, CHUNK_BYTES = 8, 1 << 24
# Logits of some words of the vocabulary are so many at a time: half as many take 1.4 x the time (1,024 tokens of 32,000
# words, AMX), four times as many save a tenth of it and hold a third of all logits.
LOGITS_OF_WORDS = 1 << 20


def _add_product(total_VD: torch.Tensor, a_RV: torch.Tensor, b_RD: torch.Tensor) -> None:
    """total += a^T b, summed in fp32 and in place."""
    if a_RV.dtype == total_VD.dtype:
        total_VD.addmm_(a_RV.t(), b_RD)
    else:
        total_VD += a_RV.t() @ b_RD


# torch.compile would turn the sum in place into one that copies [V, D] for every chunk (a quarter of the loss's time at
# V=32k); an operator of its own is left as it is. Its name holds the module's: on the Hub this file is another module.
_add_product_compiled = torch.library.custom_op(
    f"{re.sub(r'[^A-Za-z0-9_]', '_', __name__)}::add_product", _add_product, mutates_args=("total_VD",)
)
_add_product_compiled.register_fake(lambda total_VD, a_RV, b_RD: None)


def _loss_of_rows(x_RD, weight_VD, bias_V, labels_R, softcap, smoothing, needs_gradient, needs_bias) -> tuple:
    """Returns the summed loss, (e - s target) (R, V), counted / s (R, 1) and the bias's gradient (V); None: not needed.

    target is what the row's softmax should be: onehot(label), or with smoothing eps (1 - eps) onehot(label) + eps / V.
    """
    counted_R1 = (labels_R != IGNORE_INDEX)[:, None]
    target_R1 = torch.where(counted_R1, labels_R[:, None], 0)
    logits_RV = (x_RD @ weight_VD.t() if bias_V is None else torch.addmm(bias_V, x_RD, weight_VD.t())).float()
    if softcap is not None:
        logits_RV.div_(softcap).tanh_()
        slope_RV = torch.addcmul(logits_RV.new_ones(()), logits_RV, logits_RV, value=-1)  # tanh'(z) = 1 - tanh(z)^2
        logits_RV.mul_(softcap)
    at_target_R1, top_R1 = logits_RV.gather(1, target_R1), logits_RV.amax(dim=-1, keepdim=True)
    if smoothing:
        at_target_R1 = torch.lerp(at_target_R1, logits_RV.mean(dim=-1, keepdim=True), smoothing)
    # Values near 1e-38 have denormal products, ten times slower (a fresh T5's logits); beside 1, e^-60 counts as 0.
    e_RV = torch.threshold_(logits_RV.sub_(top_R1), -60, -torch.inf).exp_()
    s_R1 = e_RV.sum(dim=-1, keepdim=True)
    loss = torch.where(counted_R1, s_R1.log() + top_R1 - at_target_R1, 0).sum()
    if not needs_gradient:
        return loss, None, None, None
    s_at_label_R1 = s_R1 if not smoothing else (1 - smoothing) * s_R1
    if torch.compiler.is_compiling():  # compiled, the comparison is fused; a scatter would copy e
        columns = torch.arange(e_RV.shape[1], device=e_RV.device)
        e_RV = e_RV - torch.where(columns == target_R1, s_at_label_R1, 0)
    else:
        e_RV.scatter_add_(1, target_R1, -s_at_label_R1)
    if smoothing:
        e_RV = e_RV.sub_(s_R1 * (smoothing / e_RV.shape[1]))
    if softcap is not None:
        e_RV = e_RV.mul_(slope_RV)
    scale_R1 = counted_R1 / s_R1
    # Before e is rounded to half: a sum over tokens has no other chance to be exact, and costs one reading of e.
    grad_bias_V = (e_RV.t() @ scale_R1)[:, 0] if needs_bias else None
    return loss, e_RV.to(x_RD.dtype), scale_R1, grad_bias_V


def _by_rows(x_ND, weight_VD, bias_V, labels_N, dtype, rows, softcap, smoothing, needs) -> tuple:
    """The summed loss and the gradients of x, weight and bias, some rows at a time, by three products.

    With e = exp(logits - max) and s = sum of e, the gradient of a row's loss is (e - s target) / s. The division and
    the zero of rows that do not count are applied to the (R, D) sides of the products, not to the (R, V) ones.
    """
    needs_x, needs_weight, needs_bias = needs
    grads_x, grad_weight, grad_bias = [], None, None
    weight, bias = weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype)
    total = x_ND.new_zeros((), dtype=torch.float32)
    for x_RD, labels_R in zip(x_ND.split(rows), labels_N.split(rows)):
        x_RD = x_RD.to(dtype)
        loss, e_RV, scale_R1, bias_part = _loss_of_rows(
            x_RD, weight, bias, labels_R, softcap, smoothing, any(needs), needs_bias
        )
        total = total + loss
        if needs_x:
            grads_x.append(((e_RV @ weight) * scale_R1).to(x_ND.dtype))
        if needs_weight:
            scaled_RD = (x_RD * scale_R1).to(dtype)
            if grad_weight is None:
                grad_weight = (e_RV.t() @ scaled_RD).float()  # fp32 even for half operands: it sums up all chunks
            elif torch.compiler.is_compiling():
                _add_product_compiled(grad_weight, e_RV, scaled_RD)
            else:
                _add_product(grad_weight, e_RV, scaled_RD)
        if needs_bias:
            grad_bias = bias_part if grad_bias is None else grad_bias + bias_part
        del e_RV  # or the next chunk would be made while this one is still held
    return total, torch.cat(grads_x) if needs_x else None, grad_weight, grad_bias


def _by_words(x_ND, weight_VD, bias_V, labels_N, dtype, words, needs) -> tuple:
    """As `_by_rows`, some words of the vocabulary at a time: the gradient of their weights is one product, not a sum
    over chunks, for which a second [V, D] would be made, read and written at each; no bf16 weight is copied whole.

    The sums of all words are needed before any gradient, so the logits are made twice: a product more, which bf16
    instructions do in less time than that. With p the softmax over the words of a chunk and r the share of the chunk in
    a row's sum, the gradient of a row's loss is r (p - target / r); r, and the zero of rows that do not count, are
    applied to the (N, D) sides.
    """
    needs_x, needs_weight, needs_bias = needs
    x_ND, x_dtype = x_ND.to(dtype), x_ND.dtype
    counted_N1 = (labels_N != IGNORE_INDEX)[:, None]
    target_N1 = torch.where(counted_N1, labels_N[:, None], 0)
    biases = [None] * -(-weight_VD.shape[0] // words) if bias_V is None else bias_V.split(words)
    starts = range(0, weight_VD.shape[0], words)

    def chunks():
        """Words' weights, logits, and of each target its index and whether it is among the words."""
        for start, weight_CD, bias_C in zip(starts, weight_VD.split(words), biases):
            weight_CD, index_N1 = weight_CD.to(dtype), target_N1 - start
            logits_NC = x_ND @ weight_CD.t() if bias_C is None else torch.addmm(bias_C.to(dtype), x_ND, weight_CD.t())
            last = weight_CD.shape[0] - 1
            yield weight_CD, logits_NC, index_N1.clamp(0, last), (index_N1 >= 0) & (index_N1 <= last)

    at_target_N1, log_sums = x_ND.new_zeros(target_N1.shape, dtype=torch.float32), []
    for _, logits_NC, index_N1, is_here_N1 in chunks():
        logits_NC = logits_NC.float()
        at_target_N1 += torch.where(is_here_N1, logits_NC.gather(1, index_N1), 0)
        # The largest probability is e^top / sum; to sum e^logit here would be slow where it is denormal.
        largest_N1 = logits_NC.softmax(dim=-1).amax(dim=-1, keepdim=True)
        log_sums.append(logits_NC.amax(dim=-1, keepdim=True) - largest_N1.log())
    log_sums_NS = torch.cat(log_sums, dim=1)
    log_sum_N1 = log_sums_NS.logsumexp(dim=1, keepdim=True)
    total = torch.where(counted_N1, log_sum_N1 - at_target_N1, 0).sum()
    if not any(needs):
        return total, None, None, None

    shares_NS = (log_sums_NS - log_sum_N1).exp().clamp(min=1e-30)  # 1 / r has to be finite
    wide_x_ND = x_ND.float()  # once: products of two types are slow on CPUs
    grad_x = torch.zeros_like(wide_x_ND) if needs_x else None
    grad_weight, grad_bias = torch.empty_like(weight_VD) if needs_weight else None, []
    for start, share_N1, (weight_CD, logits_NC, index_N1, is_here_N1) in zip(
        starts, shares_NS.split(1, dim=1), chunks()
    ):
        minus_target_N1 = -(is_here_N1 / share_N1)
        share_N1 = share_N1 * counted_N1
        if needs_bias:  # before p is rounded to half, as above
            p_NC = logits_NC.float().softmax(dim=-1).scatter_add_(1, index_N1, minus_target_N1)
            grad_bias.append((p_NC.t() @ share_N1)[:, 0])
            p_NC = p_NC.to(dtype)
        else:
            p_NC = logits_NC.softmax(dim=-1).scatter_add_(1, index_N1, minus_target_N1.to(dtype))
        if needs_x:
            grad_x.addcmul_((p_NC @ weight_CD).float(), share_N1)
        if needs_weight:
            grad_weight[start : start + words] = p_NC.t() @ (wide_x_ND * share_N1).to(dtype)
    return total, grad_x.to(x_dtype) if needs_x else None, grad_weight, torch.cat(grad_bias) if needs_bias else None


class _LinearCrossEntropySum(torch.autograd.Function):
    """sum over i of the cross-entropy of softmax(x_i W^T + b) against y_i, with all gradients made in the forward pass.

    rows, words: of a chunk; words is None where rows are taken, and otherwise rows is.
    """

    @staticmethod
    def forward(ctx, x_ND, weight_VD, bias_V, labels_N, dtype, rows, words, softcap, smoothing):
        inputs, needs = (x_ND, weight_VD, bias_V, labels_N, dtype), ctx.needs_input_grad[:3]
        if words is None:
            total, *gradients = _by_rows(*inputs, rows, softcap, smoothing, needs)
        else:
            total, *gradients = _by_words(*inputs, words, needs)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total):
        gradients = ctx.saved_tensors
        if torch.compiler.is_compiling() or torch._C._autograd._get_current_graph_task_keep_graph():
            scaled = (None if g is None else g * grad_total.to(g.dtype) for g in gradients)
        else:  # they are not needed again; scaling a copy would cost a second [V, D]
            ctx.maybe_clear_saved_tensors()
            scaled = (None if g is None else g.mul_(grad_total) for g in gradients)
        return *scaled, None, None, None, None, None, None


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    logits_per_chunk: int | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of `hidden @ weight.T + bias` against `labels`, in fp32, as a scalar.

    Args:
        hidden: (N, D). weight: (V, D). labels: (N,), already aligned with `hidden`; -100 is not counted.
        num_items_in_batch: the sum is divided by it; None: by the number of counted labels (mean).
        logits_per_chunk: most logits held at a time; None: an eighth of them all, but at least 16 MB.
        softcap: logits become softcap * tanh(logits / softcap) (Gemma 2, section 2); None: they stay as they are.
        bias: (V,), or None for none.
        label_smoothing: this share of each label's probability is spread evenly over all V entries (Szegedy et al.
            2016, section 7; Vaswani et al. 2017, section 5.4), as in torch's `cross_entropy`.

    Under autocast the products run in the autocast dtype, as those of a Linear layer do; on a CPU where that takes
    longer than fp32 they run in fp32, which is both faster and more exact.
    """
    if not torch.is_grad_enabled():  # a Function sees requires_grad alone, and would make the weight's gradient
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type, dtype = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    if device_type == "cpu" and dtype in SLOW_ON_CPU:
        dtype = torch.float32
    rows, words = _rows_per_chunk(hidden.shape[0], weight.shape[0], dtype, logits_per_chunk, softcap), None
    is_plain = softcap is None and label_smoothing == 0 and not torch.compiler.is_compiling()
    if is_plain and device_type == "cpu" and torch.bfloat16 in (dtype, weight.dtype):
        words = max(1, (logits_per_chunk or LOGITS_OF_WORDS) // max(1, hidden.shape[0]))
        words = words if words < weight.shape[0] else None  # one chunk would be made twice for nothing
    with torch.autocast(device_type, enabled=False):
        total = _LinearCrossEntropySum.apply(hidden, weight, bias, labels, dtype, rows, words, softcap, label_smoothing)
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORE_INDEX).sum()
    elif torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


def _rows_per_chunk(tokens: int, vocabulary: int, dtype, logits_per_chunk: int | None, softcap: float | None) -> int:
    if logits_per_chunk is None:
        # fp32 values, a half copy beside them for products in half, and a second fp32 buffer for the cap's slope.
        bytes_per_logit = 4 + (dtype.itemsize if dtype.itemsize < 4 else 0) + (4 if softcap is not None else 0)
        logits_per_chunk = max(CHUNK_BYTES, 4 * tokens * vocabulary // CHUNK_SHARE) // bytes_per_logit
    return max(1, logits_per_chunk // vocabulary)


def shift_left(labels: torch.Tensor) -> torch.Tensor:
    """(B, T) labels aligned with the inputs -> (B, T) labels aligned with the predictions: token t + 1 at t."""
    return torch.nn.functional.pad(labels, (0, 1), value=IGNORE_INDEX)[..., 1:]
