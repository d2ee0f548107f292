"""Losses and statistics of routers over a forward pass; the losses keep all experts in use.

L sparse layers, B rows, T tokens of each, E experts, K experts per token.

Both losses are means over a row's real tokens, then over rows, each row with the weight that its labels have in the
model's loss. A row is never cut by gradient accumulation or spread over processes, so micro-batches add up to the
batch they were cut from, which transformers' means over micro-batches do not.
"""

from contextlib import contextmanager
from typing import NamedTuple

import torch
from transformers.utils.output_capturing import OutputRecorder

from .experts import TopKRouter, scores_of
from .experts_bias import count
from .experts_grouped import IMPLEMENTATION, best_implementation
from .lm_head import IGNORE_INDEX


def load_balancing_loss(scores: torch.Tensor, index: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """E x sum over experts of f_e P_e for each row, (..., B): 1 where experts are used equally, E where only one is.

    f_e is the share of the row's assignments to expert e, P_e the mean score it got (Fedus et al. 2021, eq. 4-6).

    Args:
        scores: (..., B, T, E), of each token summing to 1. index: (..., B, T, K). real: (B, T), 0 at padding.
    """
    num_experts = scores.shape[-1]
    real = real.to(scores.dtype)
    count = real.sum(dim=-1).clamp(min=1)[..., None]
    assignments = real[..., None].expand(index.shape).flatten(-2)
    chosen = scores.new_zeros(*index.shape[:-2], num_experts).scatter_add_(-1, index.flatten(-2), assignments)
    share = chosen / (count * index.shape[-1])
    mean_score = (scores * real[..., None]).sum(dim=-2) / count
    return num_experts * (share * mean_score).sum(dim=-1)


def router_z_loss(logits: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The mean of logsumexp(logits)^2 over each row's real tokens, (..., B) (Zoph et al. 2022, eq. 5).

    logits: (..., B, T, E). real: (B, T), 0 at padding.
    """
    real = real.to(logits.dtype)
    return (logits.logsumexp(dim=-1).square() * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1)


class LayerRoutings(NamedTuple):
    """The routings of all sparse layers of a stack, in the order they ran.

    logits (L, B, T, E) in fp32, index (L, B, T, K), kept (L, B, T, K) or None for all, real (B, T): not padding.
    """

    logits: torch.Tensor
    index: torch.Tensor
    kept: torch.Tensor | None
    real: torch.Tensor


# For `_can_record_outputs` of models with experts.
ROUTER_LOGITS = {"router_logits": OutputRecorder(TopKRouter, index=0)}


class HasExperts:
    """Called on a model: whether it has experts. Called on a class: whether all its models have."""

    def __get__(self, model, model_class):
        config = model_class.config_class if model is None else model.config
        return lambda: config.num_experts is not None


class ModelWithExperts:
    """A mixin for the PreTrainedModel of a family whose layers may hold experts."""

    _can_set_experts_implementation = HasExperts()  # transformers looks for experts in the model's own file only

    def __init__(self, config, *args, **kwargs):
        if config.num_experts is not None and config.router_bias_update_rate > 0:
            self._keep_in_fp32_modules_strict = {"e_score_correction_bias"}  # steps of 0.001 would vanish in bf16
        super().__init__(config, *args, **kwargs)

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        return super().get_correct_experts_implementation(best_implementation(self.config, requested_experts))

    @contextmanager
    def _optimize_model_for_decode(self):
        """As in transformers, which except on CPUs makes `generate` decode by batched_mm if its grouped_mm was chosen.

        The same for ours: a compiled step is a CUDA graph, in which ours would read on the host where experts end.
        """
        if self.device.type == "cpu" or self.config._experts_implementation != IMPLEMENTATION:
            with super()._optimize_model_for_decode():
                yield
            return
        self.set_experts_implementation("batched_mm")
        try:
            yield
        finally:
            self.set_experts_implementation(IMPLEMENTATION)

    def router_fields(self, routed: list, shape, unpadded, loss_mask, output_router_logits: bool | None) -> dict:
        """The fields of lm_head.RouterFields that a base model fills; in evaluation none, unless asked for.

        The logits themselves are recorded by transformers (ROUTER_LOGITS). In training biases count assignments.

        routed: per sparse layer (router, logits (N, E), index (N, K), kept (N, K) or None). shape: (B, T) of the
        layers' input. unpadded: None, or the Unpadded by which all rows were one there. loss_mask: (B, T), 0 at tokens
        that do not count, or None. output_router_logits: None takes the config's value.
        """
        if output_router_logits is None:
            output_router_logits = self.config.output_router_logits
        if not (self.training or output_router_logits):
            return {}
        routers, *parts = zip(*routed)
        # PEFT wraps routers.
        routers = [router.get_base_layer() if hasattr(router, "get_base_layer") else router for router in routers]
        logits, index, kept = ([in_rows(x, shape, unpadded) for x in part] for part in parts)
        if loss_mask is not None and loss_mask.dim() == 2:
            real = loss_mask[:, -logits[0].shape[1] :] != 0
        else:
            real = torch.ones(logits[0].shape[:2], dtype=torch.bool, device=logits[0].device)
        kept = torch.stack(kept) if kept[0] is not None else None
        routing = LayerRoutings(torch.stack(logits), torch.stack(index), kept, real)
        if self.training and routers[0].bias_update_rate > 0:
            for router, assignments_E in zip(routers, assignments_per_expert(routing)):
                count(router, assignments_E)
        return router_outputs(routing, routers[0].scoring)

    def output(self, output_class, **fields):
        """An output with RouterFields."""
        return output_class(**fields)

    def head_output(self, output_class, outputs, loss, labels, num_items_in_batch=None, **own):
        """As in the base class. In training the routers' losses are part of the loss.

        In evaluation the loss is the task's alone, and so comparable with models of other routers, or none. Without
        labels `router_losses` is passed on to the caller, who computes the loss.
        """
        router_losses = outputs.get("router_losses")
        if router_losses is not None and loss is not None:
            weights_B = row_weights(router_losses.shape[1], labels, num_items_in_batch)
            added, aux_loss, z_loss = weighted_router_losses(self.config, router_losses, weights_B)
            own |= {"aux_loss": aux_loss, "z_loss": z_loss}
            loss = loss + added if self.training else loss
            outputs = {name: x for name, x in outputs.items() if name != "router_losses"}
        return super().head_output(output_class, outputs, loss, labels, num_items_in_batch, **own)


def in_rows(x_N, shape, unpadded):
    """Values of N tokens -> (B, T, ...), 0 at padding if the rows ran as one row."""
    if x_N is None:
        return None
    return x_N.unflatten(0, shape) if unpadded is None else unpadded.put_back(x_N[None])


def router_outputs(routing: LayerRoutings, scoring: str) -> dict:
    logits, index, kept, real = routing
    scores = scores_of(logits, scoring)
    probabilities = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20) if scoring == "sigmoid" else scores
    losses = torch.stack((load_balancing_loss(probabilities, index, real), router_z_loss(logits, real)), dim=-1)
    with torch.no_grad():
        assignments_LE = assignments_per_expert(routing)
        entropy_LBT = -torch.special.xlogy(probabilities, probabilities).sum(dim=-1)
        total = real.sum().clamp(min=1)
        dropped = torch.zeros_like(assignments_LE[:, 0], dtype=torch.float)
        if kept is not None:
            dropped = ((~kept).sum(dim=-1) * real).sum(dim=(-2, -1)) / (total * index.shape[-1])
        return {
            "router_losses": losses,
            "router_load": assignments_LE / assignments_LE.sum(dim=-1, keepdim=True).clamp(min=1),
            "router_entropy": (entropy_LBT * real).sum(dim=(-2, -1)) / total,
            "router_dropped": dropped,
        }


def assignments_per_expert(routing: LayerRoutings) -> torch.Tensor:
    """(L, E) integers: how many assignments of real tokens chose each expert."""
    num_experts, index = routing.logits.shape[-1], routing.index
    assignments_LEN = torch.zeros(*index.shape[:1], num_experts, dtype=torch.long, device=index.device)
    weights = routing.real.long()[None, ..., None].expand_as(index)
    return assignments_LEN.scatter_add_(1, index.flatten(1), weights.flatten(1))


def merged(*outputs) -> dict:
    """The router fields of the stacks of one model, as those of one stack: layers after layers."""
    stacks = [{name: out[name] for name in FIELDS if out.get(name) is not None and len(out[name])} for out in outputs]
    stacks = [fields for fields in stacks if fields]
    if len(stacks) < 2:
        return stacks[0] if stacks else {}
    join = {name: torch.cat for name in stacks[0]} | {"router_logits": lambda parts: sum(parts, ())}
    return {name: join[name]([fields[name] for fields in stacks]) for name in stacks[0]}


FIELDS = ("router_losses", "router_load", "router_entropy", "router_dropped", "router_logits")


def row_weights(rows: int, labels: torch.Tensor, num_items_in_batch) -> torch.Tensor:
    """(rows,): each row's share of the labels by which the model's loss is averaged.

    labels: (B, ...), -100 not counted; where several rows of the model belong to one of labels they share its weight.
    """
    counted_B = (labels != IGNORE_INDEX).reshape(labels.shape[0], -1).sum(dim=-1)
    total = counted_B.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    if torch.is_tensor(total):
        total = total.to(labels.device)
    repeats = rows // labels.shape[0]
    return (counted_B / (total * repeats)).repeat_interleave(repeats)


def weighted_router_losses(config, router_losses, weights_B) -> tuple:
    """(addend of a training loss, aux_loss, z_loss); the latter two without their coefficients.

    router_losses: (L, B, 2) of the base model. weights_B: each row's share of the loss, as `row_weights` gives it.
    """
    aux, z = (router_losses.mean(dim=0) * weights_B.to(router_losses.device)[:, None]).sum(dim=0)
    return config.router_aux_loss_coef * aux + config.router_z_loss_coef * z, aux, z
