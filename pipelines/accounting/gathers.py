"""What FSDP2 and tensor parallelism make of a model's weights: a rank's part, what is gathered, what is reduced.

FSDP2 as in torch 2.11 to 2.15 (torch/distributed/fsdp/_fully_shard), in the groups that transformers' plans make.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .layers import OUTERMOST
from .memory import FP32, HALF


def share_by_tp(model: nn.Module, size: int) -> nn.Module:
    """Cut the weights of a model on the meta device to those that one of `size` ranks of tp holds, by its plan."""
    for name, weight in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        dim = dimension_of(style_of(model, name), weight.ndim, leaf)
        if dim is not None:
            shape = list(weight.shape)
            shape[dim] = -(-shape[dim] // size)
            part = nn.Parameter(torch.empty(shape, dtype=weight.dtype, device="meta"), weight.requires_grad)
            setattr(model.get_submodule(owner), leaf, part)
    model.tie_weights()
    return model


def style_of(model: nn.Module, name: str) -> str:
    """The style of a weight, or of its module, in the model's plan of tensor parallelism; empty if it stays whole."""
    plan, general = model.tp_plan or {}, re.sub(r"\d+", "*", name)
    return plan.get(general) or plan.get(general.rpartition(".")[0]) or ""


def dimension_of(style: str, ndim: int, leaf: str) -> int | None:
    """The dimension that a style of transformers splits; None: the weight stays whole."""
    if style.startswith("embedding"):
        return 0 if style.endswith("rowwise") else 1
    if "colwise" in style:
        return max(ndim - 2, 0)
    return ndim - 1 if "rowwise" in style and leaf != "bias" else None


@dataclass(eq=False)
class Group:
    """Weights that FSDP2 gathers together. stays: they are kept from the forward pass until their gradients are made.

    is_tied: the head is the token table, so that their gradients are whole when the backward pass ends. is_whole: the
    weights are gathered now. is_ahead: the buffer that they are copied from is there. has_begun: its backward pass has.
    """

    module: nn.Module
    weights: list[nn.Parameter]
    stays: bool = False
    is_tied: bool = False
    is_whole: bool = False
    is_ahead: bool = False
    has_begun: bool = False

    def gathered(self, half: bool) -> int:
        """The bytes of its weights as they are gathered."""
        return sum(p.numel() * (HALF if half else p.element_size()) for p in self.weights)

    @property
    def size(self) -> int:
        return self.gathered(half=False)

    @property
    def reduced(self) -> int:
        """The bytes of its gradients, which are reduced in fp32."""
        return FP32 * sum(p.numel() for p in self.weights if p.requires_grad)


def groups_of(model: nn.Module) -> list[Group]:
    """The groups in the order of the forward pass: an untied token table, each layer, and the rest.

    An adapter's weights are in none, as they are whole on each rank.
    """
    by_name: dict[str, Group] = {}
    reads, head = model.get_input_embeddings(), model.get_output_embeddings()
    table = getattr(reads, "weight", None)
    rest = Group(model, [], stays=True, is_tied=head is not None and table is head.weight)
    for name, weight in shared_weights(model):
        match, group = OUTERMOST.match(name), rest
        if match is not None and isinstance(model.get_submodule(match[1]), nn.ModuleList):
            group = by_name.setdefault(match[0], Group(model.get_submodule(match[0][:-1]), []))
        elif weight is table and head is not None and not rest.is_tied:
            group = by_name.setdefault(name, Group(reads, []))
        group.weights.append(weight)
    return [*by_name.values(), rest]


def shared_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """(name, weight) of those that FSDP2 shares among ranks."""
    named = list(model.named_parameters())
    is_adapted = any(".lora_" in name for name, _ in named)
    return [(name, weight) for name, weight in named if not (is_adapted and weight.requires_grad)]


def keeps_gradients_as_made() -> bool:
    """Whether FSDP2 lets a gathered bf16 weight have a gradient in fp32, as the loss makes the head's (torch 2.15)."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    return hasattr(FSDPParamGroup, "_set_unsharded_grad_dtypes")


class Gathers:
    """Adds what FSDP2 holds beside a rank's shares while a step runs to a HeldBytes.

    A group's weights are gathered into a buffer and copied out of it. In the forward pass the buffer stays until that
    of the next group is there; in the backward pass the next group's is there beforehand. Gradients are copied into a
    buffer that stays until the next group's.
    """

    def __init__(self, held, groups: list[Group]):
        self.held, self.groups = held, groups
        self.buffer = self.reduced = 0
        self.current: Group | None = None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """A forward pass in the block."""
        hooks = [group.module.register_forward_pre_hook(partial(self.before, group)) for group in self.groups]
        hooks += [group.module.register_forward_hook(partial(self.after, group)) for group in self.groups]
        yield
        for hook in hooks:
            hook.remove()
        self.held.hold(-self.buffer)

    def before(self, group: Group, *_) -> None:
        self.held.hold(group.size)
        self.held.hold(-self.buffer)
        self.buffer = group.size
        self.held.hold(group.size)
        group.is_whole = True

    def after(self, group: Group, module, inputs, output) -> None:
        if not group.stays:
            self.held.hold(-group.size)
            group.is_whole = False
        for made in tree_leaves(output):
            if torch.is_tensor(made) and made.requires_grad:
                made.register_hook(partial(self.began, group))

    def began(self, group: Group, *_) -> None:
        """The backward pass comes to a group, and so to the end of the one before."""
        if group.has_begun:
            return
        group.has_begun = True
        if self.current is not None and not self.current.is_tied:
            self.reduce(self.current)
        self.current = group
        if not group.is_whole:
            self.held.hold(group.size * (2 - group.is_ahead))
            self.held.hold(-group.size)
            group.is_whole, group.is_ahead = True, False
        number = self.groups.index(group)
        if number and not self.groups[number - 1].is_whole:
            self.held.hold(self.groups[number - 1].size)
            self.groups[number - 1].is_ahead = True

    def reduce(self, group: Group) -> None:
        """Reduce the gradients of a group."""
        self.held.hold(-group.size - self.reduced)
        self.reduced = group.reduced
        self.held.hold(self.reduced)
        for weight in group.weights:
            weight.grad = None

    def end(self) -> None:
        """The backward pass is over."""
        for group in self.groups:
            if group is self.current or group.is_tied:
                self.reduce(group)
