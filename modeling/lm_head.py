"""What comes after the layers, for all families: output classes, output layers, the loss of logits over a vocabulary.

N tokens, R of them in a chunk, D hidden size, V vocabulary. The logits of a chunk are computed, turned into gradients
of hidden states and weight at once, and dropped, so memory grows with R x V, not with N x V.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, make_dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import ModelOutput

IGNORE_INDEX = -100
# Unless the caller sets a limit, a chunk takes an eighth of the memory of all logits in fp32, but at least this many
# bytes: smaller chunks save no memory that matters, and matrix products of few rows are slow.
CHUNK_SHARE, CHUNK_BYTES = 8, 1 << 24
ROWS_PER_CHUNK = 1024


@dataclass
class RouterFields(ModelOutput):
    """L sparse layers (those of an encoder before those of a decoder), E experts, B rows.

    Filled in training, and in evaluation with `output_router_logits`.

    router_losses: (L, B, 2), each row's balance loss and z-loss, without coefficients; filled by base models, and by
        heads without labels.
    aux_loss, z_loss: means of these, scalars without coefficients, filled by heads; in training part of `loss`.
    mtp_loss: that of the modules that predict tokens further ahead (multi_token.py), no coefficient; part of `loss`.
    router_load: (L, E), each expert's share of the assignments of real tokens, summing to 1.
    router_entropy: (L,), mean over tokens of the entropy of their scores, in nats; log E if all experts score equally.
    router_dropped: (L,), share of assignments dropped because the expert was full; 0 without `expert_capacity`.
    router_logits: L tensors (B T, E), with `output_router_logits` only.
    """

    aux_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    mtp_loss: torch.FloatTensor | None = None
    router_losses: torch.FloatTensor | None = None
    router_load: torch.FloatTensor | None = None
    router_entropy: torch.FloatTensor | None = None
    router_dropped: torch.FloatTensor | None = None
    router_logits: tuple[torch.FloatTensor, ...] | None = None


def with_router_fields(output_class: type, module: str) -> type:
    """An output class of the same name, with the fields of RouterFields after its own. module: its `__module__`."""
    names = {"__module__": module, "__doc__": output_class.__doc__, "without_router_fields": output_class}
    return dataclass(type(output_class.__name__, (RouterFields, output_class), names))


ROUTER_FIELDS = tuple(RouterFields.__dataclass_fields__)
LOGITS = ("logits", "prediction_logits")  # output fields with logits over a vocabulary
NO_LOGITS = "this training step made its loss without logits; pass return_logits=True to the model to have them"


class WithoutLogits(ModelOutput):
    """Outputs of a step without logits. They have no field for logits; the error on access says how to get them.

    row_losses: (B,), each row's summed cross-entropy of its labels, without label smoothing and without gradients.
    """

    def __getattr__(self, name):
        raise AttributeError(NO_LOGITS if name in LOGITS else f"{type(self).__name__} has no attribute {name!r}")

    def __getitem__(self, key):
        if key in LOGITS:
            raise KeyError(NO_LOGITS)
        return super().__getitem__(key)


def without_logits(output_class: type) -> type:
    """The WithoutLogits form of an output class; pickle looks for it beside that class, as <its name>WithoutLogits."""
    columns = [(field.name, field.type, None) for field in fields(output_class) if field.name not in LOGITS]
    columns.append(("row_losses", torch.FloatTensor | None, None))
    result_class = make_dataclass(f"{output_class.__name__}WithoutLogits", columns, bases=(WithoutLogits,))
    result_class.__module__, output_class.without_logits = output_class.__module__, result_class
    return result_class


class FillsOutputs:
    """A mixin for models that builds the outputs of their heads."""

    def returns_logits(self, return_logits: bool | None, labels) -> bool:
        """Whether a head fills `logits`. None: not in a training step with labels, which needs only the loss.

        In such a step the logits would be the largest tensor of all. If they are filled, the loss is made from them.
        Either way it is a sum, divided by `num_items_in_batch`, the labels of the whole optimizer step.
        """
        return return_logits if return_logits is not None else labels is None or not self.training

    def output(self, output_class, **fields):
        """An output, without RouterFields if none is given: each field of an output takes time at every token."""
        if not any(name in fields for name in ROUTER_FIELDS):
            output_class = getattr(output_class, "without_router_fields", output_class)
        return output_class(**fields)

    def head_output(self, output_class, outputs, loss, labels, num_items_in_batch=None, row_losses=None, **own):
        """A head's output: the loss, the fields `own`, and those of the base model's `outputs` that the class has.

        labels, num_items_in_batch: as for the loss; families with experts weight the routers' losses by them.
        row_losses: as in WithoutLogits; outputs with logits have none.
        """
        for name in LOGITS:
            if name in own and own[name] is None:
                own = {key: x for key, x in own.items() if key != name} | {"row_losses": row_losses}
                output_class = output_class.without_logits
        passed_on = {name: x for name, x in outputs.items() if name in output_class.__dataclass_fields__}
        return self.output(output_class, loss=loss, **own, **passed_on)


def head_width(config) -> int:
    """Input width of the head; with a factorised token table (ALBERT) the width of the table."""
    return getattr(config, "embedding_size", None) or config.hidden_size


class LanguageModelHead(nn.Linear):
    """Hidden states -> logits, or -> the loss without all logits in memory.

    The loss is computed inside this module's forward on purpose: ZeRO-3 and FSDP gather a module's weight for its
    forward only, so a loss that read `lm_head.weight` from outside would see an empty shard.

    `logit_multiplier` scales the hidden states before the product, and so the logits before the bias is added (T5 v1.0
    with tied embeddings: hidden_size**-0.5). With `final_logit_softcapping` c the logits z become c * tanh(z / c)
    (Gemma Team 2024, section 2).
    """

    def __init__(self, config):
        rows = getattr(config, "output_vocab_size", None) or config.vocab_size
        super().__init__(head_width(config), rows, bias=getattr(config, "lm_head_bias", False))
        self.softcap = config.final_logit_softcapping
        self.multiplier = getattr(config, "logit_multiplier", 1.0)

    def forward(self, hidden_states, labels=None, num_items_in_batch=None, label_smoothing: float = 0.0):
        """(B, T, D) -> logits (B, T, V); with `labels` (B, T), aligned with the predictions: as language_model_loss."""
        if self.multiplier != 1:
            hidden_states = hidden_states * self.multiplier
        if labels is None:
            logits = super().forward(hidden_states)
            return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
        part, (weight, bias) = VocabularyPart.of(self.weight), map(_local, (self.weight, self.bias))
        flat = (hidden_states.flatten(0, -2), weight, labels.flatten(), num_items_in_batch)
        options = {"softcap": self.softcap, "bias": bias, "label_smoothing": label_smoothing, "part": part}
        loss, losses = linear_cross_entropy(*flat, **options, return_losses=True)
        return loss, losses.view(labels.shape)


class VocabularyPart(NamedTuple):
    """The part of a vocabulary of `size` entries, from the entry `first` on, whose weights this process has.

    group: the processes that have its parts, of `most` entries at most.
    """

    group: Any
    first: int
    most: int
    size: int

    @classmethod
    def of(cls, weight) -> "VocabularyPart | None":
        """The part by the weight of a head, a DTensor that tensor parallelism has split into rows; None: the whole."""
        mesh = getattr(weight, "device_mesh", None)
        if mesh is None:
            return None
        most = -(-weight.shape[0] // mesh.size())
        return cls(mesh.get_group(), mesh.get_local_rank() * most, most, weight.shape[0])

    def own(self, target_R1, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries of the vocabulary (R, 1) -> their places in this part, 0 for others'; whether they are in it."""
        target_R1 = target_R1 - self.first
        is_own_R1 = (target_R1 >= 0) & (target_R1 < width)
        return torch.where(is_own_R1, target_R1, 0), is_own_R1

    def summed(self, *values) -> tuple[torch.Tensor, ...]:
        """The sums over all parts of tensors of one shape, by one reduction."""
        together = torch.stack(values)
        dist.all_reduce(together, group=self.group)
        return together.unbind()


def _local(weight):
    """The part of a weight that this process has."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


@contextmanager
def _unhooked(head) -> Iterator[None]:
    """In the block a head has its class's forward, without transformers' hook, which gathers the logits of all parts.

    Other hooks, by which FSDP2 gathers a weight for one forward, stay.
    """
    hook = vars(head).pop("forward", None)
    try:
        yield
    finally:
        if hook is not None:
            head.forward = hook


def language_model_loss(head, hidden_states, labels, num_items_in_batch=None, label_smoothing=0.0, finish=None):
    """(B, T, D) and labels (B, T), aligned with the predictions -> (scalar loss, (B, T) losses), without the logits.

    The (B, T) losses are cross-entropies without smoothing and without gradients; 0 for labels that are not counted.
    A LanguageModelHead computes them from its weight, or from the part of it that tensor parallelism has left it. PEFT
    wraps heads, and transformers hooks others (it sets `_is_hooked`). Such heads compute logits, a chunk at a time and
    again in the backward pass. finish: scales and caps these logits, where the head does not.
    """
    is_hooked = getattr(head, "_is_hooked", False)
    if isinstance(head, LanguageModelHead) and (not is_hooked or hasattr(head.weight, "device_mesh")):
        with _unhooked(head) if is_hooked else nullcontext():
            return head(hidden_states, labels, num_items_in_batch, label_smoothing)

    def chunk_losses(hidden, targets):
        logits = head(hidden) if finish is None else finish(head(hidden))
        losses = cross_entropy(logits, targets, "none")
        total = cross_entropy(logits, targets, "sum", label_smoothing) if label_smoothing else losses.sum()
        return total, losses.detach()

    parts = [checkpoint(chunk_losses, *chunk, use_reentrant=False) for chunk in chunks(hidden_states, labels)]
    total, losses = sum(total for total, _ in parts), torch.cat([losses for _, losses in parts]).view(labels.shape)
    return total / ((labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch), losses


def loss_of_logits(logits, labels, num_items_in_batch=None, label_smoothing: float = 0.0):
    """The scalar loss, computed from logits (B, T, V) that the caller returns, too.

    Their copy in fp32 is made a chunk at a time.
    """
    labels = labels.to(logits.device)
    total = sum(cross_entropy(*chunk, "sum", label_smoothing) for chunk in chunks(logits, labels))
    return total / ((labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)


def chunks(x, labels):
    """Cut x (B, T, any) and labels (B, T) into pairs of chunks of at most ROWS_PER_CHUNK tokens."""
    return zip(x.flatten(0, -2).split(ROWS_PER_CHUNK), labels.flatten().split(ROWS_PER_CHUNK))


def cross_entropy(logits, labels, reduction: str, label_smoothing: float = 0.0):
    return nn.functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORE_INDEX, reduction=reduction, label_smoothing=label_smoothing
    )


def _add_product(total_VD: torch.Tensor, a_RV: torch.Tensor, b_RD: torch.Tensor) -> None:
    """total += a^T b, summed in fp32 and in place."""
    if a_RV.dtype == total_VD.dtype:
        torch.addmm(total_VD, a_RV.t(), b_RD, out=total_VD)  # torch counts no FLOPs of addmm_
        return
    # CPUs add half precision to fp32 by way of a copy, here of a slice that fits into their cache.
    size = 2048 if total_VD.device.type == "cpu" else total_VD.shape[0]
    for total_SD, a_RS in zip(total_VD.split(size), a_RV.split(size, dim=1)):
        total_SD += a_RS.t() @ b_RD


# torch.compile would make the in-place sum copy [V, D] for every chunk (a quarter of the loss's time at V=32k), but it
# leaves a custom operator alone. Its name contains the module's: in a model from the Hub this file is another module.
_add_product_compiled = torch.library.custom_op(
    f"{re.sub(r'[^A-Za-z0-9_]', '_', __name__)}::add_product", _add_product, mutates_args=("total_VD",)
)
_add_product_compiled.register_fake(lambda total_VD, a_RV, b_RD: None)


def _loss_of_rows(x_RD, weight_VD, bias_V, labels_R, softcap, smoothing, part, needs_gradient, needs_bias) -> tuple:
    """Returns the summed loss, the losses without smoothing (R), (e - s target) (R, V), counted / s (R, 1) and the
    bias's gradient (V), None where not needed; e and s as in `_by_rows`.

    target is what the row's softmax should be: onehot(label), or with smoothing eps (1 - eps) onehot(label) + eps / V.
    part: None, or the VocabularyPart of the V weights: maxima and sums over the vocabulary are reduced over all parts.
    """
    counted_R1, width = (labels_R != IGNORE_INDEX)[:, None], weight_VD.shape[0]
    target_R1 = torch.where(counted_R1, labels_R[:, None], 0)
    if part is not None:
        target_R1, is_own_R1 = part.own(target_R1, width)
    logits_RV = (x_RD @ weight_VD.t() if bias_V is None else torch.addmm(bias_V, x_RD, weight_VD.t())).float()
    if softcap is not None:
        logits_RV.div_(softcap).tanh_()
        slope_RV = torch.addcmul(logits_RV.new_ones(()), logits_RV, logits_RV, value=-1)  # tanh'(z) = 1 - tanh(z)^2
        logits_RV.mul_(softcap)
    at_target_R1, top_R1 = logits_RV.gather(1, target_R1), logits_RV.amax(dim=-1, keepdim=True)
    mean_R1 = logits_RV.mean(dim=-1, keepdim=True) if smoothing else None
    if part is not None:
        dist.all_reduce(top_R1, dist.ReduceOp.MAX, group=part.group)
    # Values near 1e-38 have denormal products, ten times slower (a fresh T5's logits); beside 1, e^-60 counts as 0.
    e_RV = torch.threshold_(logits_RV.sub_(top_R1), -60, -torch.inf).exp_()
    s_R1 = e_RV.sum(dim=-1, keepdim=True)
    if part is not None:
        means = [mean_R1 * (width / part.size)] if smoothing else []
        s_R1, at_target_R1, *means = part.summed(s_R1, torch.where(is_own_R1, at_target_R1, 0), *means)
        mean_R1 = means[0] if smoothing else None
    log_sum_R1 = s_R1.log() + top_R1
    losses_R1 = torch.where(counted_R1, log_sum_R1 - at_target_R1, 0)
    loss = losses_R1.sum()
    if smoothing:
        loss = torch.where(counted_R1, log_sum_R1 - torch.lerp(at_target_R1, mean_R1, smoothing), 0).sum()
    losses_R = losses_R1[:, 0]
    if not needs_gradient:
        return loss, losses_R, None, None, None
    s_at_label_R1 = s_R1 if not smoothing else (1 - smoothing) * s_R1
    if part is not None:
        s_at_label_R1 = torch.where(is_own_R1, s_at_label_R1, 0)
    if torch.compiler.is_compiling():  # compiled, the comparison is fused; a scatter would copy e
        columns = torch.arange(e_RV.shape[1], device=e_RV.device)
        e_RV = e_RV - torch.where(columns == target_R1, s_at_label_R1, 0)
    else:
        e_RV.scatter_add_(1, target_R1, -s_at_label_R1)
    if smoothing:
        e_RV = e_RV.sub_(s_R1 * (smoothing / (width if part is None else part.size)))
    if softcap is not None:
        e_RV = e_RV.mul_(slope_RV)
    scale_R1 = counted_R1 / s_R1
    # Summed before e is rounded to half precision, else the sum over tokens is inexact; costs one more read of e.
    grad_bias_V = (e_RV.t() @ scale_R1)[:, 0] if needs_bias else None
    return loss, losses_R, e_RV.to(x_RD.dtype), scale_R1, grad_bias_V


def _by_rows(x_ND, weight_VD, bias_V, labels_N, dtype, rows, softcap, smoothing, part, needs) -> tuple:
    """The summed loss, the losses (N) and the gradients of x, weight and bias, by three products per chunk of rows.

    With e = exp(logits - max) and s = sum of e, the gradient of a row's loss is (e - s target) / s. The division and
    the zeros of rows that do not count are applied to the (R, D) factors of the products, not to the (R, V) ones.
    """
    needs_x, needs_weight, needs_bias = needs
    losses, grads_x, grad_bias = [], [], None
    # In fp32 even for half operands: it sums up all chunks.
    grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32) if needs_weight else None
    weight, bias = weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype)
    total = x_ND.new_zeros((), dtype=torch.float32)
    for x_RD, labels_R in zip(x_ND.split(rows), labels_N.split(rows)):
        x_RD = x_RD.to(dtype)
        loss, losses_R, e_RV, scale_R1, bias_part = _loss_of_rows(
            x_RD, weight, bias, labels_R, softcap, smoothing, part, any(needs), needs_bias
        )
        total = total + loss
        losses.append(losses_R)
        if needs_x:
            grads_x.append(((e_RV @ weight) * scale_R1).to(x_ND.dtype))
        if needs_weight:
            add = _add_product_compiled if torch.compiler.is_compiling() else _add_product
            add(grad_weight, e_RV, (x_RD * scale_R1).to(dtype))
        if needs_bias:
            grad_bias = bias_part if grad_bias is None else grad_bias + bias_part
        del e_RV  # else it is still in memory while the next chunk's is computed
    grad_x = torch.cat(grads_x) if needs_x else None
    if needs_x and part is not None:
        dist.all_reduce(grad_x, group=part.group)
    return total, torch.cat(losses), grad_x, grad_weight, grad_bias


class _LinearCrossEntropySum(torch.autograd.Function):
    """sum over i of the cross-entropy of softmax(x_i W^T + b) against y_i, with all gradients made in the forward pass.

    It also returns the terms of the sum, without gradients and smoothing. rows: number of rows in a chunk.
    """

    @staticmethod
    def forward(ctx, x_ND, weight_VD, bias_V, labels_N, dtype, rows, softcap, smoothing, part):
        inputs, needs = (x_ND, weight_VD, bias_V, labels_N, dtype), ctx.needs_input_grad[:3]
        total, losses_N, *gradients = _by_rows(*inputs, rows, softcap, smoothing, part, needs)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(losses_N)
        return total, losses_N

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total, _):
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
    return_losses: bool = False,
    part: VocabularyPart | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of `hidden @ weight.T + bias` against `labels`, in fp32, as a scalar.

    Args:
        hidden: (N, D). weight: (V, D). labels: (N,), already aligned with `hidden`; -100 is not counted. bias: (V,).
        num_items_in_batch: the sum is divided by it; None: by the number of counted labels (mean).
        logits_per_chunk: most logits held at a time; None: see CHUNK_SHARE. softcap: as in LanguageModelHead.
        label_smoothing: this share of each label's probability is spread evenly over all V entries (Szegedy et al.
            2016, section 7; Vaswani et al. 2017, section 5.4), as in torch's `cross_entropy`.
        return_losses: return (the scalar, the cross-entropy (N,) of each label), the latter without smoothing and
            without gradients; 0 where it is not counted.
        part: that of the vocabulary whose weight, and bias, are given; None: they are those of all of it.

    Under autocast the products run in the autocast dtype, as those of a Linear layer do.
    """
    if not torch.is_grad_enabled():  # a Function reads only requires_grad, and would compute the weight's gradient
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    device_type, dtype = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    width = weight.shape[0] if part is None else part.most  # all processes cut the same chunks
    rows = _rows_per_chunk(hidden.shape[0], width, dtype, logits_per_chunk, softcap)
    with torch.autocast(device_type, enabled=False):
        options = (dtype, rows, softcap, label_smoothing, part)
        total, losses = _LinearCrossEntropySum.apply(hidden, weight, bias, labels, *options)
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORE_INDEX).sum()
    elif torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return (total / num_items_in_batch, losses) if return_losses else total / num_items_in_batch


def _rows_per_chunk(tokens: int, vocabulary: int, dtype, logits_per_chunk: int | None, softcap: float | None) -> int:
    if logits_per_chunk is None:
        # An fp32 value, a half-precision copy for products in half, and an fp32 buffer for the cap's slope.
        bytes_per_logit = 4 + (dtype.itemsize if dtype.itemsize < 4 else 0) + (4 if softcap is not None else 0)
        logits_per_chunk = max(CHUNK_BYTES, 4 * tokens * vocabulary // CHUNK_SHARE) // bytes_per_logit
    return max(1, logits_per_chunk // vocabulary)


def shift_left(labels: torch.Tensor) -> torch.Tensor:
    """(B, T) labels aligned with the inputs -> (B, T) labels aligned with the predictions: token t + 1 at t."""
    return torch.nn.functional.pad(labels, (0, 1), value=IGNORE_INDEX)[..., 1:]
