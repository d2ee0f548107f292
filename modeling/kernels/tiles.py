"""Attention that computes only the tiles of the scores in which a query sees a key.

A mask of transformers hides most scores of packed rows, windows and chunks, and sdpa computes them all the same. Here
rows are cut into tiles of TILE tokens. Each tile of queries meets the tiles of keys that hold something for it; tiles of
queries that meet equally many are one call of sdpa.

Shapes: B rows, T tokens, H heads, G key/value heads, K channels of a head; Q tiles of a row, and P tiles of queries that
meet n tiles of keys each.
"""

import functools
from dataclasses import dataclass, field

import torch
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import MODEL_MAPPING
from transformers.masking_utils import and_masks, flex_attention_mask, padding_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .seen import bounds_of, is_known, is_plain

TILE = 64
# Share of all tiles up to which tiles are faster than sdpa under a mask.
MOST_TILES = 0.75


@dataclass
class Group:
    """Tiles of queries that meet equally many tiles of keys.

    query (P,), key (P, n): numbers among the B * Q tiles of all rows. seen: (P or 1, 1, TILE, n * TILE) bool, or None
    where everything is seen.
    """

    query: torch.Tensor
    key: torch.Tensor
    seen: torch.Tensor | None
    added: dict = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """0 where seen, else half the least number, so that a query that sees nothing gives no nan. Made once."""
        if self.seen is not None and dtype not in self.added:
            least = torch.finfo(dtype).min / 2
            self.added[dtype] = torch.zeros(self.seen.shape, dtype=dtype).masked_fill_(~self.seen, least)
        return self.added.get(dtype)


@dataclass
class Tiles:
    """In place of a mask: which tiles of keys the tiles of queries meet. order: puts the groups' queries back."""

    groups: list[Group]
    order: torch.Tensor | None


def tiles_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **rest):
    """transformers' mask interface: Tiles, or what sdpa takes where tiles would not be faster."""
    rest |= {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "attention_mask": attention_mask}
    rest |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": mask_function}
    check_calls_backends(type(rest.get("config")))
    device = torch.device(rest.get("device", "cpu"))
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    begins = not is_traced and q_length == kv_length and q_length >= 4 * TILE
    if not begins or isinstance(q_offset, torch.Tensor) or q_offset or kv_offset:
        return sdpa_mask(**rest)
    if attention_mask is not None and bool(attention_mask.all()):
        attention_mask = rest["attention_mask"] = None
    if attention_mask is None and is_plain(mask_function):
        return sdpa_mask(**rest)
    if device.type != "cpu":
        return flex_attention_mask(**rest)
    if attention_mask is not None:
        mask_function = and_masks(mask_function, padding_mask_function(attention_mask))
    tiles = None
    if is_known(mask_function) or not rest.get("use_vmap", False):
        tiles = tiles_in_bounds(mask_function, batch_size, q_length)
    if tiles is not None:
        return tiles
    dense = sdpa_mask(**rest)
    return dense if dense is None else tiles_of_mask(dense) or dense


@functools.cache
def check_calls_backends(config_class: type) -> None:
    """Raise ValueError for a class of transformers that makes masks by its registry, and scores by code of its own."""
    model_class = MODEL_MAPPING.get(config_class, None)
    for each in model_class if isinstance(model_class, tuple) else (model_class,):
        if each is not None and not each._can_set_attn_implementation():
            raise ValueError(
                f"attn_implementation='anyformer': {each.__name__} computes its attention by itself, without "
                f"transformers' AttentionInterface; load it with attn_implementation='eager'"
            )


def tiles_in_bounds(mask_function, batch: int, length: int) -> Tiles | None:
    """Tiles of a mask function whose bounds are known; None where the bounds leave too many."""
    at = torch.arange(-(-length // TILE) * TILE).clamp(max=length - 1)[None]
    first, last = (x.clamp(0, length - 1).expand(batch, -1).unflatten(1, (-1, TILE)) for x in bounds_of(mask_function, at, length))
    first, last = first.amin(-1) // TILE, last.amax(-1) // TILE  # (B, Q)
    counts = (last - first + 1).clamp(min=1)
    per_row = counts.shape[1]
    if counts.sum() > MOST_TILES * counts.numel() * per_row:
        return None
    sizes = rounded(counts.flatten())
    inside = torch.arange(TILE)
    groups = []
    for n in sizes.unique().tolist():
        query = (sizes == n).nonzero()[:, 0]
        row, begin = query // per_row, first.flatten()[query].clamp(max=per_row - n)
        key = begin[:, None] + torch.arange(n)
        q = ((query % per_row)[:, None] * TILE + inside)[:, :, None]  # (P, TILE, 1)
        k = (key[..., None] * TILE + inside).flatten(1)[:, None]  # (P, 1, n * TILE)
        head = torch.zeros((), dtype=torch.long)
        seen = mask_function(row[:, None, None], head, q.clamp(max=length - 1), k.clamp(max=length - 1)) & (k < length)
        groups.append(Group(query, key + (row * per_row)[:, None], shared(seen.expand(len(query), TILE, n * TILE)[:, None])))
    return Tiles(groups, order_of(groups))


def tiles_of_mask(mask_BHTS) -> Tiles | None:
    """Tiles of a ready mask, (B, 1, T, T) bool; None where too many are shown, or heads see different things."""
    if mask_BHTS.dtype != torch.bool or mask_BHTS.shape[1] != 1:
        return None
    short = -mask_BHTS.shape[-1] % TILE
    m = pad(mask_BHTS[:, 0], (0, short, 0, short)).unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE)).transpose(2, 3)
    shown = m.flatten(3).any(-1)  # (B, Q, Q)
    if shown.sum() > MOST_TILES * shown.numel():
        return None
    per_row, shown = shown.shape[1], shown.flatten(0, 1)
    sizes, groups = rounded(shown.sum(-1).clamp(min=1)), []
    nearest = shown.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    for n in sizes.unique().tolist():
        query = (sizes == n).nonzero()[:, 0]
        key = nearest[query, :n]
        seen = m.flatten(0, 1)[query[:, None], key].transpose(1, 2).flatten(2)[:, None]
        groups.append(Group(query, key + (query // per_row * per_row)[:, None], shared(seen)))
    return Tiles(groups, order_of(groups))


def rounded(counts: torch.Tensor) -> torch.Tensor:
    """Counts rounded up to one of few numbers, so that there are few groups."""
    sizes, most = [1], int(counts.max())
    while sizes[-1] < most:
        sizes.append(min(most, max(sizes[-1] + 1, sizes[-1] * 5 // 4)))
    sizes = torch.tensor(sizes)
    return sizes[torch.searchsorted(sizes, counts)]


def shared(seen: torch.Tensor) -> torch.Tensor | None:
    """One mask for all tiles of a group that see the same, as within a window; None where they see everything."""
    if (seen == seen[:1]).all():
        seen = seen[:1]
    return None if seen.all() else seen


def order_of(groups: list[Group]) -> torch.Tensor | None:
    return None if len(groups) == 1 else torch.argsort(torch.cat([group.query for group in groups]))


def tiles_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    softcap=None,
    s_aux=None,
    position_bias=None,
    **rest,
) -> tuple:
    """transformers' attention interface: query (B, H, T, K), key and value (B, G, T, K) -> (B, T, H, K) and no weights.

    softcap, s_aux (H,): soft caps of the scores, and sinks beside them. position_bias (1 or B, H, T, S): added to them.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not isinstance(attention_mask, Tiles):
        if softcap is None and s_aux is None:
            if isinstance(attention_mask, torch.Tensor) or attention_mask is None:
                name = "sdpa"
            else:
                name = "flex_attention"
            extra = {} if position_bias is None else {"position_bias": position_bias}
            return ALL_ATTENTION_FUNCTIONS[name](
                module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **extra, **rest
            )
        is_causal = rest.get("is_causal")
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = additive(attention_mask, query, key, is_causal)
        return by_products(query, key, value, mask, scaling, dropout, softcap, s_aux, position_bias).transpose(1, 2), None
    (batch, _, length, _), dtype = query.shape, query.dtype
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    query, key, value = (in_tiles(x.to(dtype)) for x in (query, key, value))
    outputs = []
    for group in attention_mask.groups:
        q = query if attention_mask.order is None else query.index_select(0, group.query)
        k, v = (x.index_select(0, group.key.flatten()).unflatten(0, group.key.shape).flatten(1, 2) for x in (key, value))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = group.mask(dtype)
        if position_bias is not None:
            bias = bias_of(position_bias, group, query.shape[0] // batch).to(dtype)
            mask = bias if mask is None else mask + bias
        if softcap is None and s_aux is None:
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
            )
        else:
            out = by_products(q, k, v, mask, scaling, dropout, softcap, s_aux)
        outputs.append(out.transpose(1, 2))
    if attention_mask.order is None:
        out = outputs[0]
    else:
        out = torch.cat(outputs).index_select(0, attention_mask.order)
    return out.reshape(batch, -1, *out.shape[2:])[:, :length], None


def in_tiles(x_BHTK: torch.Tensor) -> torch.Tensor:
    """(B, H, T, K) -> (B * Q, TILE, H, K)."""
    x_BTHK = x_BHTK.transpose(1, 2)
    short = -x_BTHK.shape[1] % TILE
    x_BTHK = pad(x_BTHK, (0, 0, 0, 0, 0, short)) if short else x_BTHK
    return x_BTHK.reshape(-1, TILE, *x_BTHK.shape[2:])


def bias_of(bias_BHTS: torch.Tensor, group: Group, per_row: int) -> torch.Tensor:
    """The bias of the scores of a group's tiles: (P, H, TILE, n * TILE)."""
    short = -bias_BHTS.shape[-1] % TILE
    tiles = pad(bias_BHTS, (0, short, 0, short)).unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE))
    row = group.query // per_row if bias_BHTS.shape[0] > 1 else torch.zeros_like(group.query)
    at = row[:, None], slice(None), (group.query % per_row)[:, None], slice(None), group.key % per_row
    return tiles[at].permute(0, 2, 3, 1, 4).flatten(3)  # (P, n, H, TILE, TILE) before


def additive(mask, query, key, is_causal: bool) -> torch.Tensor | None:
    """A mask to add to scores, of a bool mask, or of none where the layer is causal."""
    least = torch.finfo(query.dtype).min / 2
    if mask is None and is_causal and query.shape[2] > 1:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, least)


def by_products(query, key, value, mask, scaling, dropout=0.0, softcap=None, sinks=None, bias=None) -> torch.Tensor:
    """softmax(q k^T * scaling + bias + mask) v with soft caps (Gemma Team 2024, section 2) and sinks (Xiao et al. 2024).

    query (P, H, T, K), key and value (P, G, S, K) -> (P, H, T, K).
    """
    query = query.unflatten(1, (key.shape[1], -1))  # (P, G, H / G, T, K)
    scores = query @ (key.transpose(2, 3) * scaling).unsqueeze(2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.flatten(1, 2)
    for extra in (bias, mask):
        scores = scores if extra is None else scores + extra
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = drop(weights if sinks is None else weights[..., :-1], p=dropout)
    return (weights.unflatten(1, (key.shape[1], -1)) @ value.unsqueeze(2)).flatten(1, 2)
