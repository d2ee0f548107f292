"""What routers did in a forward pass: losses that keep experts in use, and statistics.

L sparse layers, B rows, T tokens of each, E experts, K experts per token.

Both losses are means over a row's real tokens, then over rows, each row with the weight that its labels have in the
model's loss. A row is never cut by gradient accumulation or spread over processes, so micro-batches add up to the
batch they were cut from. (transformers takes a mean over the micro-batch: a product of two means, whose sum over
micro-batches is another number, and adds it once for each of them.)
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from .experts import scores_of
from .experts_bias import count
from .linear_cross_entropy import IGNORE_INDEX


def load_balancing_loss(scores: torch.Tensor, index: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """E x sum over experts of f_e P_e for each row, (..., B): 1 where experts are used equally, E where only one is.

    f_e is the share of the row's slots that chose expert e, P_e the mean score it got (Fedus et al. 2021, eq. 4-6).

    Args:
        scores: (..., B, T, E), of each token summing to 1. index: (..., B, T, K). real: (B, T), 0 at padding.
    """
    num_experts = scores.shape[-1]
    real = real.to(scores.dtype)
    count = real.sum(dim=-1).clamp(min=1)[..., None]
    chosen = functional.one_hot(index, num_experts).sum(dim=-2).to(scores.dtype)
    share = (chosen * real[..., None]).sum(dim=-2) / (count * index.shape[-1])
    mean_score = (scores * real[..., None]).sum(dim=-2) / count
    return num_experts * (share * mean_score).sum(dim=-1)


def router_z_loss(logits: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The mean of logsumexp(logits)^2 over each row's real tokens, (..., B) (Zoph et al. 2022, eq. 5).

    logits: (..., B, T, E). real: (B, T), 0 at padding.
    """
    real = real.to(logits.dtype)
    return (logits.logsumexp(dim=-1).square() * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1)


class Routing(NamedTuple):
    """What all sparse layers of a stack did, in the order they ran.

    logits (L, B, T, E) in fp32, index (L, B, T, K), kept (L, B, T, K) or None for all, real (B, T): not padding.
    """

    logits: torch.Tensor
    index: torch.Tensor
    kept: torch.Tensor | None
    real: torch.Tensor


def router_fields(routed: list, shape, counted_mask, unpadded, training: bool, shown: bool) -> dict:
    """The fields of outputs.RouterFields that a base model fills; none in evaluation unless they are to be `shown`.

    routed: a tuple for each sparse layer: its router, logits (N, E), index (N, K), kept (N, K) or None. shape: (B, T)
    of what the layers saw. unpadded: None, or an Unpadded by which they saw all rows as one. counted_mask: (B, T), 0 at
    tokens that do not count, or None. In training routers with a bias count their slots.
    """
    if not (training or shown):
        return {}
    routers, *parts = zip(*routed)
    logits, index, kept = ([in_rows(x, shape, unpadded) for x in part] for part in parts)
    if counted_mask is not None and counted_mask.dim() == 2:
        real = counted_mask[:, -logits[0].shape[1] :] != 0
    else:
        real = torch.ones(logits[0].shape[:2], dtype=torch.bool, device=logits[0].device)
    kept = torch.stack(kept) if kept[0] is not None else None
    routing = Routing(torch.stack(logits), torch.stack(index), kept, real)
    if training and routers[0].bias_update_rate > 0:
        for router, slots_E in zip(routers, slots_per_expert(routing)):
            count(router, slots_E)
    return router_outputs(routing, routers[0].scoring, shown)


def in_rows(x_N, shape, unpadded):
    """What was made of N tokens -> (B, T, ...); where rows ran as one, padding becomes 0."""
    if x_N is None:
        return None
    return x_N.unflatten(0, shape) if unpadded is None else unpadded.put_back(x_N[None])


def router_outputs(routing: Routing, scoring: str, with_logits: bool) -> dict:
    logits, index, kept, real = routing
    scores = scores_of(logits, scoring)
    probabilities = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20) if scoring == "sigmoid" else scores
    losses = torch.stack((load_balancing_loss(probabilities, index, real), router_z_loss(logits, real)), dim=-1)
    with torch.no_grad():
        slots_LE = slots_per_expert(routing)
        entropy_LBT = -torch.special.xlogy(probabilities, probabilities).sum(dim=-1)
        total = real.sum().clamp(min=1)
        dropped = torch.zeros_like(slots_LE[:, 0], dtype=torch.float)
        if kept is not None:
            dropped = ((~kept).sum(dim=-1) * real).sum(dim=(-2, -1)) / (total * index.shape[-1])
        fields = {
            "router_losses": losses,
            "router_load": slots_LE / slots_LE.sum(dim=-1, keepdim=True).clamp(min=1),
            "router_entropy": (entropy_LBT * real).sum(dim=(-2, -1)) / total,
            "router_dropped": dropped,
        }
    if with_logits:
        fields["router_logits"] = tuple(logits.flatten(1, 2))
    return fields


def slots_per_expert(routing: Routing) -> torch.Tensor:
    """(L, E) whole numbers: how many slots of real tokens chose each expert."""
    num_experts, index = routing.logits.shape[-1], routing.index
    slots_LEN = torch.zeros(*index.shape[:1], num_experts, dtype=torch.long, device=index.device)
    weights = routing.real.long()[None, ..., None].expand_as(index)
    return slots_LEN.scatter_add_(1, index.flatten(1), weights.flatten(1))


def merged(*outputs) -> dict:
    """The router fields of the stacks of one model, as those of one stack: layers after layers."""
    found = [{name: out[name] for name in FIELDS if out.get(name) is not None} for out in outputs]
    found = [fields for fields in found if fields]
    if len(found) < 2:
        return found[0] if found else {}
    join = {name: torch.cat for name in found[0]} | {"router_logits": lambda parts: sum(parts, ())}
    return {name: join[name]([fields[name] for fields in found]) for name in found[0]}


FIELDS = ("router_losses", "router_load", "router_entropy", "router_dropped", "router_logits")


def row_weights(rows: int, labels: torch.Tensor, num_items_in_batch) -> torch.Tensor:
    """(rows,): each row's share of the labels by which the model's loss is averaged.

    labels: (B, ...), -100 not counted; where several rows of the model belong to one of labels they share its weight.
    """
    counted_B = (labels != IGNORE_INDEX).reshape(labels.shape[0], -1).sum(dim=-1)
    total = counted_B.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    each = rows // labels.shape[0]
    return (counted_B / (total * each)).repeat_interleave(each)


def head_losses(config, router_losses, labels, num_items_in_batch) -> tuple:
    """(what to add to a head's loss, aux_loss, z_loss); the latter two without their coefficients.

    router_losses: (L, B, 2) of the base model.
    """
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(router_losses.device)
    weights_B = row_weights(router_losses.shape[1], labels.to(router_losses.device), num_items_in_batch)
    aux, z = (router_losses.mean(dim=0) * weights_B[:, None]).sum(dim=0)
    return config.router_aux_loss_coef * aux + config.router_z_loss_coef * z, aux, z
