"""Strided attention (Child et al. 2019, section 4.2) as two batches of products under one softmax.

A query sees the keys less than `stride` away, and those whose distance is a multiple of it. Rows are cut into tiles of
`stride` tokens: near keys lie in the query's own tile and in those beside it, far ones at the query's place in each.

Shapes: B rows, T tokens, G key/value heads with R query heads each, K channels of a head; s the stride, N tiles of a
row, W the near keys that a query meets: 2s, or 3s in both directions.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from .products import MadeMask, Seen, in_attention_dtype, weights_of
from .seen import bounds_of, joined_parts

KEY_COST = 3  # of what a key costs in sdpa, which does not keep the scores
WIDE = 128  # a stride from which tiles, too, leave out most of what lies between the far keys


@dataclass
class Columns(Seen):
    """query (N, s, 1), key (N, s, W + N): indices of tokens. seen: (B or 1, 1, N, 1, s, W + N), near keys, then far."""

    query: torch.Tensor
    key: torch.Tensor

    def bias(self, bias_BHTS: torch.Tensor, kv_heads: int, dtype: torch.dtype) -> torch.Tensor:
        """`mask` + a score bias (1 or B, H, T, T) -> (1 or B, G, N, R, s, W + N)."""
        rows = bias_BHTS[:1] if bias_BHTS.stride(0) == 0 else bias_BHTS
        return rows[:, :, self.query, self.key].unflatten(1, (kv_heads, -1)).transpose(2, 3) + self.mask(dtype)


@dataclass
class Strides(MadeMask):
    """Which near and far keys the queries of strided layers see; one group holds all queries."""

    stride: int = 1


def make_strides(seen, batch: int, length: int, keys: float) -> Strides | None:
    """The Strides of a mask function that shows nothing beside a strided one; None if they would not be faster.

    keys: the mean number of keys within the mask's bounds.
    """
    stride = next((part.stride for part in joined_parts(seen) if hasattr(part, "stride")), None)
    if stride is None or 3 * stride > length:
        return None
    token, tiles = torch.arange(length)[None], -(-length // stride)
    sides = 2 if bool((bounds_of(seen, token, length)[1] <= token).all()) else 3
    if KEY_COST * (sides * stride + tiles) > keys * min(1.0, WIDE / stride):
        return None
    query = torch.arange(tiles * stride).view(tiles, stride, 1)
    near = query[:, :1] - stride + torch.arange(sides * stride)  # (N, 1, W)
    far = query[:, :, 0].t().expand(tiles, -1, -1)  # (N, s, N)
    key = torch.cat((near.expand(-1, stride, -1), far), dim=-1)
    is_near = torch.arange(key.shape[-1]) < sides * stride
    row, head = torch.arange(batch)[:, None, None, None], torch.zeros((), dtype=torch.long)
    query_at, key_at = query.clamp(max=length - 1), key.clamp(0, length - 1)
    shown = (key == key_at) & (((query - key).abs() < stride) == is_near) & seen(row, head, query_at, key_at)
    shown = shown.expand(batch, -1, -1, -1)[:, None, :, None]
    if (shown == shown[:1]).all():
        shown = shown[:1]
    return Strides([Columns(shown, query_at, key_at)], stride=stride)


def in_strides(query, key, value, strides: Strides, scaling, dropout, softcap=None, sinks=None, bias=None):
    """query (B, H, T, K), key and value (B, G, T, K) -> (B, T, H, K)."""
    length, stride, kv_heads = query.shape[2], strides.stride, key.shape[1]
    query, key, value = in_attention_dtype(query, key, value)
    query, key, value = (
        pad(x, (0, 0, 0, -length % stride)).unflatten(2, (-1, stride)) for x in (query * scaling, key, value)
    )
    q = query.unflatten(1, (kv_heads, -1)).transpose(2, 3)  # (B, G, N, R, s, K)
    tiles, heads = q.shape[2:4]
    (added,) = strides.masks(q.dtype, bias, kv_heads)
    sides = (strides.groups[0].key.shape[-1] - tiles) // stride
    near = q.flatten(3, 4) @ with_neighbours(key, sides).transpose(3, 4)  # (B, G, N, R * s, W)
    far = q.transpose(2, 4).flatten(3, 4) @ key.transpose(2, 3).transpose(3, 4)  # (B, G, s, R * N, N)
    near, far = near.unflatten(3, (heads, stride)), far.unflatten(3, (heads, tiles)).transpose(2, 4)
    sinks = None if sinks is None else sinks.view(1, kv_heads, 1, heads, 1, 1)
    weights = weights_of(torch.cat((near, far), dim=-1), (added,), value.dtype, dropout, softcap, sinks)
    near, far = weights.split((near.shape[-1], tiles), dim=-1)
    out = (near.flatten(3, 4) @ with_neighbours(value, sides)).unflatten(3, (heads, stride))  # (B, G, N, R, s, K)
    far = far.transpose(2, 4).flatten(3, 4) @ value.transpose(2, 3)  # (B, G, s, R * N, K)
    out = out + far.unflatten(3, (heads, tiles)).transpose(2, 4)
    return out.permute(0, 2, 4, 1, 3, 5).flatten(3, 4).flatten(1, 2)[:, :length]


def with_neighbours(x_BGNsK: torch.Tensor, sides: int) -> torch.Tensor:
    """Each tile behind the one before it, and for three sides before the one after it: (B, G, N, sides * s, K)."""
    padded = pad(x_BGNsK, (0, 0, 0, 0, 1, sides - 2))
    return torch.cat([padded[:, :, i : i + x_BGNsK.shape[2]] for i in range(sides)], dim=3)
