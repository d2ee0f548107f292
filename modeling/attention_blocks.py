"""Attention that sees a neighbourhood and few tokens beyond it, in blocks: time and memory grow as the row does.

Under a mask every score of a row is made and most are dropped. Here each block of queries meets the keys in reach of
its tokens only, all blocks in one call. What is seen among these is said by the mask function of the kind of attention,
as it is for dense masks and flex_attention's; where they are found, by `near` and `stride` of its row in traits.py.

Shapes as in attention.py, and C blocks of L queries with W keys each, R tokens in a column, N global tokens of a row.
"""

from dataclasses import dataclass, replace

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.masking_utils import sliding_window_bidirectional_mask_function, sliding_window_causal_mask_function

from .attention_block_sizes import BlockSizes
from .products import SLOW_ON_CPU

# Plain products make so many scores at a time on a CPU: what stays in its cache.
SCORES_AT_A_TIME = 1 << 18


@dataclass(frozen=True)
class Blocks:
    """What the blocks of a row see, in place of a mask; `make_blocks` makes it.

    size: L. before, after: how many keys of the neighbouring blocks a block meets. near: (B * C, 1 or H, L, W + N),
    added to scores; far: None or (1 or B * stride, 1 or H, R, R), the same of columns, tokens `stride` apart.
    distances: (1, M), of all pairs of near tokens of a block and far ones of a column, for score biases.
    index: None or (B, N), keys that every block meets.
    """

    size: int
    before: int
    after: int
    stride: int
    near: torch.Tensor
    far: torch.Tensor | None
    distances: torch.Tensor
    index: torch.Tensor | None

    def with_bias(self, bias_BH1M: torch.Tensor) -> "Blocks":
        """The same with a bias of the scores for each of `distances`, which all rows share."""
        bias_HM, near, far = bias_BH1M[0, :, 0], self.near, self.far
        pairs = near.shape[-2] * near.shape[-1]
        near = near + bias_HM[:, :pairs].unflatten(-1, near.shape[-2:])
        far = None if far is None else far + bias_HM[:, pairs:].unflatten(-1, far.shape[-2:])
        return replace(self, near=near, far=far)


def window_rule(window: int, is_causal: bool):
    """The mask function of windows: keys less than `window` tokens away, which counts the query."""
    if is_causal:
        return sliding_window_causal_mask_function(window)
    return sliding_window_bidirectional_mask_function(window - 1)


def make_blocks(rule, sizes: BlockSizes, x_BTD, real=None, documents=None, global_tokens=None) -> Blocks:
    """The Blocks of rows like x_BTD, of which shape, dtype and device are read.

    Args:
        rule: the kind's mask function, without padding and documents; it has to depend on distances only.
        sizes: with a stride the rule is causal.
        real: None or (B, T), False at padding, which no token sees. documents: None or (B, T), ids of documents.
        global_tokens: None, or (index, whether it is one), both (B, N), of keys that every query sees.
    """
    (batch, length), device = x_BTD.shape[:2], x_BTD.device
    near, stride, size, before, after = sizes.near, sizes.stride, sizes.size, sizes.before, sizes.after
    q, k = torch.arange(size, device=device)[:, None] + before, torch.arange(before + size + after, device=device)
    distances, far, index = [q - k], None, None
    is_near = (distances[0] <= near[0]) & (distances[0] >= -near[1])
    # What lies before and after the row is as hidden as padding.
    keys = torch.ones(1, length, dtype=torch.bool, device=device) if real is None else real
    seen = rule(0, 0, q, k) & is_near & with_neighbours(keys, size, before, after)[:, :, None]  # (1 or B, C, L, W)
    if documents is not None:
        own_BCL1 = in_blocks(documents, size)[..., None]
        seen = seen & (own_BCL1 == with_neighbours(documents, size, before, after)[:, :, None])
    seen = seen.expand(batch, -1, -1, -1)
    if global_tokens is not None:
        index, valid = global_tokens
        q = in_blocks(torch.arange(length, device=device)[None], size)[..., None]
        everywhere = valid[:, None, None] & ~rule(0, 0, q, index[:, None, None])  # what is near has been met
        if documents is not None:
            everywhere = everywhere & (own_BCL1 == documents.gather(1, index)[:, None, None])
        seen = torch.cat((seen, everywhere), dim=-1)
    if stride:
        at = torch.arange(0, length, stride, device=device)
        distances.append(at[:, None] - at)
        far = (rule(0, 0, at[:, None], at) & (distances[1] > near[0]))[None, None]  # (1 or B, 1 or stride, R, R)
        if real is not None:
            far = far & in_columns(real, stride)[:, :, None]
        if documents is not None:
            ids = in_columns(documents, stride)
            far = far & (ids[..., None] == ids[:, :, None])
        far = _additive(far.flatten(0, 1)[:, None], x_BTD.dtype)
    distances = torch.cat([each.flatten() for each in distances])[None]
    near = _additive(seen.flatten(0, 1)[:, None], x_BTD.dtype)
    return Blocks(size, before, after, stride, near, far, distances, index)


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where seen, else half the least number: a bias may be added, and of a row that sees nothing nothing is nan."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min / 2)


# ------------------------------------------------------------------------------------- rows to blocks and columns


def in_blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """(B, T, ...) -> (B, C, L, ...); the last block is filled up with zeros."""
    missing = -x.shape[1] % size
    return (_padded(x, 0, missing) if missing else x).unflatten(1, (-1, size))


def with_neighbours(x: torch.Tensor, size: int, before: int, after: int) -> torch.Tensor:
    """(B, T, ...) -> (B, C, before + L + after, ...): blocks and the ends of their neighbours; zeros beyond the row."""
    blocks = in_blocks(x, size)
    parts, count = [blocks], blocks.shape[1]
    for away, taken in enumerate(_of_neighbours(size, before), start=1):
        parts.insert(0, _padded(blocks[:, :-away, size - taken :], min(away, count), 0))
    for away, taken in enumerate(_of_neighbours(size, after), start=1):
        parts.append(_padded(blocks[:, away:, :taken], 0, min(away, count)))
    return torch.cat(parts, dim=2) if len(parts) > 1 else blocks


def _of_neighbours(size: int, reach: int) -> list[int]:
    """How many tokens of each neighbour on one side are in reach, the nearest first."""
    return [min(size, reach - before) for before in range(0, reach, size)]


def in_columns(x: torch.Tensor, stride: int) -> torch.Tensor:
    """(B, T, ...) -> (B, stride, R, ...): tokens `stride` apart."""
    return in_blocks(x, stride).transpose(1, 2)


def _padded(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """So many zeros before and after the entries of axis 1."""
    return pad(x, (0, 0) * (x.ndim - 2) + (before, after))


# ---------------------------------------------------------------------------------------------------- attention


def reads_in_place(device_type: str) -> bool:
    """Whether blocks may read keys where they are, without gradients for them. (On GPUs it was not tried.)"""
    return device_type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def attend_in_blocks(query, key, value, blocks: Blocks, scaling: float, dropout: float = 0.0) -> torch.Tensor:
    """query (B, H, T, K), key and value (B, G, T, K) -> (B, T, H, K)."""
    device_type, dtype = query.device.type, query.dtype
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    with_products = blocks.far is not None or (device_type == "cpu" and blocks.near.requires_grad)
    if device_type == "cpu" and dtype.itemsize == 2:
        # sdpa's gradients of few keys take as long in half types as in fp32, or twice as long (AMX, torch 2.15).
        has_gradients = torch.is_grad_enabled() and query.requires_grad
        computed_in = torch.float32 if dtype in SLOW_ON_CPU or (has_gradients and not with_products) else dtype
    else:
        computed_in = dtype
    with torch.autocast(device_type, enabled=False):
        query, key, value = (x.to(computed_in).transpose(1, 2) for x in (query, key, value))
        batch, length = query.shape[:2]
        if (groups := query.shape[2] // key.shape[2]) > 1:  # beside a mask sdpa would take its slowest kernel
            key, value = (x.repeat_interleave(groups, dim=2) for x in (key, value))
        if reads_in_place(device_type) and blocks.index is None and not with_products:
            return _attend_in_place(query, key, value, blocks, scaling, dropout).to(dtype)
        sides = blocks.size, blocks.before, blocks.after
        keys_and_values = [with_neighbours(x, *sides) for x in (key, value)]
        if blocks.index is not None:
            keys_and_values = [_with_everywhere(*each, blocks.index) for each in zip(keys_and_values, (key, value))]
        parts = [_heads_first(x) for x in (in_blocks(query, blocks.size), *keys_and_values)]
        if not with_products:
            mask = _mask_in(blocks.near, computed_in)
            out = scaled_dot_product_attention(*parts, attn_mask=mask, dropout_p=dropout, scale=scaling)
            return _tokens_first(out, batch, length).to(dtype)
        out, log_sums = (_tokens_first(x, batch, length) for x in attend(*parts, blocks.near, scaling))
        if blocks.far is not None:
            columns = [_heads_first(in_columns(x, blocks.stride)) for x in (query, key, value)]
            beyond = (x.unflatten(0, (batch, -1)) for x in attend(*columns, blocks.far, scaling))
            far_out, far_log_sums = (x.permute(0, 3, 1, 2, 4).flatten(1, 2)[:, :length] for x in beyond)
            out = torch.lerp(out, far_out, torch.sigmoid(far_log_sums - log_sums).to(out.dtype))
        return out.to(dtype)


def _attend_in_place(query, key, value, blocks: Blocks, scaling: float, dropout: float) -> torch.Tensor:
    """query, key, value (B, T, H, K) -> (B, T, H, K), row by row: the blocks of one row are views of its keys."""
    keys = blocks.before + blocks.size + blocks.after
    in_reach = (
        _padded(in_blocks(x, blocks.size).flatten(1, 2), blocks.before, blocks.after).unfold(1, keys, blocks.size)
        for x in (key, value)
    )  # (B, C, H, K, W)
    mask = _mask_in(blocks.near, query.dtype).unflatten(0, (query.shape[0], -1))
    rows = [
        scaled_dot_product_attention(
            q.transpose(1, 2), *(x.transpose(2, 3) for x in both), attn_mask=m, dropout_p=dropout, scale=scaling
        ).transpose(1, 2)
        for q, *both, m in zip(in_blocks(query, blocks.size), *in_reach, mask)
    ]
    return torch.stack(rows).flatten(1, 2)[:, : query.shape[1]]


def _mask_in(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return mask if mask.dtype == dtype else mask.clamp(min=torch.finfo(dtype).min / 2).to(dtype)


def _with_everywhere(near_BCWHK, x_BTHK, index_BN) -> torch.Tensor:
    """(B, C, W + N, H, K): the keys of each block, and those that every block meets."""
    index = index_BN[..., None, None].expand(-1, -1, *x_BTHK.shape[2:])
    everywhere = x_BTHK.gather(1, index)[:, None].expand(-1, near_BCWHK.shape[1], -1, -1, -1)
    return torch.cat((near_BCWHK, everywhere), dim=2)


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """(B, C, L, H, K) -> (B * C, H, L, K)."""
    return x.flatten(0, 1).transpose(1, 2)


def _tokens_first(x: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """(B * C, H, L, K) -> (B, T, H, K)."""
    return x.transpose(1, 2).reshape(batch, -1, x.shape[1], x.shape[3])[:, :length]


def attend(query, key, value, mask, scaling: float) -> tuple:
    """softmax(q k^T * scaling + mask) v and the logarithm of the softmax's sum, by which parts of one sum are joined.

    query (C, H, L, K), key and value (C, H, W, K), mask (C or 1, H or 1, L, W) -> (C, H, L, K), fp32 (C, H, L, 1).
    """
    mask = _mask_in(mask, torch.promote_types(query.dtype, torch.float32))
    return _Attend.apply(query, key, value, mask, scaling)


class _Attend(torch.autograd.Function):
    """Weights are made anew in the backward pass, some blocks at a time: neither pass holds them all."""

    @staticmethod
    def forward(ctx, query, key, value, mask, scaling):
        outputs, log_sums = [], []
        for q, k, v, m in _cut(query, key, value, mask):
            scores = _scores(q, k, m, scaling)
            weights = scores.softmax(dim=-1)
            outputs.append(weights.to(v.dtype) @ v)
            # The largest weight is e^top / sum. To sum e^score here would be slow: of hidden keys it is denormal.
            log_sums.append(scores.amax(dim=-1, keepdim=True) - weights.amax(dim=-1, keepdim=True).log_())
        out, log_sums = torch.cat(outputs), torch.cat(log_sums)
        ctx.save_for_backward(query, key, value, mask, out)
        ctx.scaling = scaling
        return out, log_sums

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_log_sums):
        query, key, value, mask, out = ctx.saved_tensors
        # d score = weight * (d weight - sum of weight * d weight + d log sum)
        shift = grad_log_sums - (grad_out * out).sum(dim=-1, keepdim=True, dtype=grad_log_sums.dtype)
        grad_mask = torch.zeros_like(mask, dtype=shift.dtype) if ctx.needs_input_grad[3] else mask
        gradients = []
        for q, k, v, m, of_mask, moved, grad in _cut(query, key, value, mask, grad_mask, shift, grad_out):
            weights = _scores(q, k, m, ctx.scaling).softmax(dim=-1)
            grad_v = weights.to(v.dtype).transpose(2, 3) @ grad
            grad_scores = (grad @ v.transpose(2, 3)).to(weights.dtype).add_(moved).mul_(weights)
            if ctx.needs_input_grad[3]:
                of_mask += grad_scores.sum_to_size(of_mask.shape)
            grad_scores = grad_scores.mul_(ctx.scaling).to(v.dtype)
            gradients.append((grad_scores @ k, grad_scores.transpose(2, 3) @ q, grad_v))
        grad_mask = grad_mask.to(mask.dtype) if ctx.needs_input_grad[3] else None
        return *(torch.cat(parts) for parts in zip(*gradients)), grad_mask, None


def _scores(query, key, mask, scaling) -> torch.Tensor:
    """In the mask's type, which is fp32 at least. (Sums of two types are slower than a copy on CPUs.)"""
    return torch.add(mask, (query @ key.transpose(2, 3)).to(mask.dtype), alpha=scaling)


def _cut(query, key, *others):
    """Parts of the tensors along their first axis, for about SCORES_AT_A_TIME scores; of a mask for all, itself."""
    count = query.shape[0]
    at_a_time = max(1, SCORES_AT_A_TIME // (query.shape[1] * query.shape[2] * key.shape[2]))
    if query.device.type != "cpu" or torch.compiler.is_compiling() or at_a_time >= count:
        return [(query, key, *others)]
    tensors = (query, key, *others)
    parts = [x.split(at_a_time) if x.shape[0] == count else [x] * -(-count // at_a_time) for x in tensors]
    return zip(*parts)
