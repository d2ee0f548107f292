"""What the masks of this backend have in common, and attention by plain products.

Shapes: B rows, T queries, S keys, H heads, G key/value heads, K channels of a head.
"""

from dataclasses import dataclass, field

import torch
from torch.nn.functional import dropout as drop


@dataclass
class Seen:
    """Queries that attend together. seen: bool, which keys they see; None: all. added: {dtype: it as additive mask}."""

    seen: torch.Tensor | None
    added: dict = field(default_factory=dict, kw_only=True)

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The additive mask of the scores, made once for all layers."""
        if dtype not in self.added:
            self.added[dtype] = None if self.seen is None else additive(self.seen, dtype)
        return self.added[dtype]


@dataclass
class MadeMask:
    """Used in place of a mask: groups of queries, each with a `mask(dtype)` and a `bias(bias, per_row, dtype)`.

    biased: a cache: the last score bias, and the result for each group.
    """

    groups: list
    biased: tuple = field(default=(None, []), kw_only=True)

    def masks(self, dtype: torch.dtype, bias_BHTS: torch.Tensor | None, per_row: int) -> list:
        """What is added to each group's scores, or None."""
        if bias_BHTS is None:
            return [group.mask(dtype) for group in self.groups]
        if bias_BHTS.requires_grad:  # computed in each layer, as a backward pass under checkpointing needs it
            return [group.bias(bias_BHTS, per_row, dtype) for group in self.groups]
        if self.biased[0] is not bias_BHTS:
            self.biased = bias_BHTS, [group.bias(bias_BHTS, per_row, dtype) for group in self.groups]
        return self.biased[1]

    def contiguous(self) -> "MadeMask":
        """Return itself: `generate` calls this on the masks that it prepares."""
        return self

    def __getattr__(self, name: str):
        raise AttributeError(
            f"attn_implementation='anyformer' gives no mask with .{name}, and this model reads its mask by itself; "
            f"load it with attn_implementation='sdpa'"
        )


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where seen, else half the lowest number: adding a bias cannot overflow, and seeing nothing gives no nan."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min / 2)


def in_attention_dtype(*tensors_BHTK: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values in the dtype in which scores are computed: that of autocast, or their own."""
    dtype, device_type = tensors_BHTK[0].dtype, tensors_BHTK[0].device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    return [x.to(dtype) for x in tensors_BHTK]


def by_products(query, key, value, added, scaling, dropout=0.0, softcap=None, sinks=None) -> torch.Tensor:
    """softmax(q k^T * scaling + added) v by plain products; a softcap is applied before `added`.

    On CPUs this is also the faster way to the gradient of a bias, for which sdpa takes its slowest kernel.

    query (B, H, T, K), key and value (B, G, S, K) -> (B, H, T, K). added: what is added to the scores; None: nothing.
    """
    groups = key.shape[1]
    scores = (query.unflatten(1, (groups, -1)) @ (key * scaling).transpose(2, 3).unsqueeze(2)).flatten(1, 2)
    sinks = None if sinks is None else sinks.view(1, -1, 1, 1)
    weights = weights_of(scores, added, value.dtype, dropout, softcap, sinks)
    return (weights.unflatten(1, (groups, -1)) @ value.unsqueeze(2)).flatten(1, 2)


def weights_of(scores, added, dtype: torch.dtype, dropout=0.0, softcap=None, sinks=None) -> torch.Tensor:
    """Scores (..., S) -> attention weights (..., S) in `dtype`. sinks: of as many axes as the scores, with one key."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for extra in added:
        scores = scores if extra is None else scores + extra
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(dtype)
    return drop(weights if sinks is None else weights[..., :-1], p=dropout)
