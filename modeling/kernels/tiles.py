"""Attention that computes only those tiles of the scores in which a query sees a key.

A mask hides most scores of packed rows, windows and chunks, but sdpa computes them all the same. Here rows are cut into
tiles of TILE tokens. Each tile of queries attends only to the tiles of keys in which it sees something; all tiles of
queries with the same number of key tiles are one call of sdpa.

Shapes: B rows, T tokens, H heads, G key/value heads, K channels of a head; Q tiles of a row, and P tiles of queries
that attend to n tiles of keys each.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    padding_mask_function,
    sdpa_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .products import MadeMask, Seen, additive, by_products, in_attention_dtype
from .seen import bounds_of, unknown_parts
from .strides import in_strides, make_strides

TILE = 64
SHORTEST_ROW = 256  # tokens; shorter rows are left to sdpa
MOST_TILES = 0.75  # share of all tiles up to which tiles are faster than sdpa under a mask
FEW_TILES = 0.25  # share of tiles within bounds, up to which no hidden ones are looked for
QUERIES_AT_A_TIME = 1024  # for which a mask is made at once to look for tiles, if it has no bounds
PLAIN = (causal_mask_function, bidirectional_mask_function)  # sdpa has a flag for them


@dataclass
class Group(Seen):
    """Tiles of queries that attend to the same number of tiles of keys.

    query (P,), key (P, n): indices into the B * Q tiles of all rows. seen: (P or 1, 1, TILE, n * TILE).
    """

    query: torch.Tensor
    key: torch.Tensor

    def bias(self, bias_BHTS: torch.Tensor, per_row: int, dtype: torch.dtype) -> torch.Tensor:
        """`mask` + a score bias (1 or B, H, T, T) -> (P, H, TILE, n * TILE). per_row: number of tiles in a row."""
        short = -bias_BHTS.shape[-1] % TILE
        tiles = pad(bias_BHTS, (0, short, 0, short)).unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE))
        row = self.query // per_row if bias_BHTS.shape[0] > 1 else torch.zeros_like(self.query)
        of_pairs = tiles[row[:, None], :, (self.query % per_row)[:, None], :, self.key % per_row]
        bias = of_pairs.permute(0, 2, 3, 1, 4).flatten(3).to(dtype)  # (P, n, H, TILE, TILE) before
        mask = self.mask(dtype)
        return bias if mask is None else bias + mask


@dataclass
class Tiles(MadeMask):
    """To which tiles of keys the tiles of queries attend.

    order: None, or where each tile's queries stand in the concatenation of all groups.
    """

    order: torch.Tensor | None = None


# ------------------------------------------------------------------------------------------------------------- masks


def tiles_mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **rest
):
    """transformers' mask interface: Tiles, or what sdpa takes where these would not be faster.

    Raises ValueError for a config whose class computes scores by code of its own, and would ignore the backend.
    """
    if not supports_backend(type(rest.get("config"))):  # such a class may not know that no mask means a causal one
        rest |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    goes_on = torch.is_tensor(q_offset) or q_offset or kv_offset or q_length != kv_length
    on_cpu = torch.device(rest.get("device", "cpu")).type == "cpu"  # not measured on other devices
    tries = on_cpu and not (is_traced or goes_on or q_length < SHORTEST_ROW)
    if tries and attention_mask is not None and bool(attention_mask.all()):
        attention_mask = None
    rest |= {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "attention_mask": attention_mask}
    rest |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": mask_function}
    if not tries or (attention_mask is None and mask_function in PLAIN):
        return sdpa_mask(**rest)
    seen = mask_function
    if attention_mask is not None:
        seen = and_masks(mask_function, padding_mask_function(attention_mask))
    takes_tensors = all(getattr(part, "takes_tensors", False) for part in unknown_parts(mask_function))
    if takes_tensors or not rest.get("use_vmap"):
        return make_tiles(seen, batch_size, q_length) or sdpa_mask(**rest)
    dense = sdpa_mask(**rest)
    if dense is None or dense.shape[1] != 1:
        return dense
    return make_tiles(lambda row, head, query, key: dense[row, head, query, key], batch_size, q_length) or dense


@torch.compiler.assume_constant_result  # depends on classes only; graphs need not trace transformers' tables
def supports_backend(config_class: type, supports: str = "_supports_sdpa") -> bool:
    """Whether transformers' class of a config runs under a backend. Raises ValueError where it takes none.

    supports: the attribute by which a class says so.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING  # late: kernels/ is loaded before these tables

    mapped = MODEL_MAPPING.get(config_class, None) or MODEL_FOR_CAUSAL_LM_MAPPING.get(config_class, ())
    classes = mapped if isinstance(mapped, tuple) else (mapped,)
    for model_class in classes:
        if not model_class._can_set_attn_implementation():
            raise ValueError(
                f"attn_implementation='anyformer': {model_class.__name__} computes its attention by itself, without "
                f"transformers' AttentionInterface; load it with attn_implementation='eager'"
            )
    return all(getattr(model_class, supports) for model_class in classes)


def make_tiles(seen, batch: int, length: int) -> MadeMask | None:
    """The Tiles or Strides of a mask function that takes tensors of indices; None if too many tiles show something."""
    at = torch.arange(-(-length // TILE) * TILE).clamp(max=length - 1)[None]
    first, last = (x.clamp(0, length - 1).expand(batch, -1) for x in bounds_of(seen, at, length))
    first, last = first.unflatten(1, (-1, TILE)).amin(-1) // TILE, last.unflatten(1, (-1, TILE)).amax(-1) // TILE
    counts, per_row, nearest = (last - first + 1).clamp(min=1), first.shape[1], None
    strides = make_strides(seen, batch, length, float(counts.float().mean()) * TILE)
    if strides is not None:
        return strides
    most = MOST_TILES * counts.numel() * per_row
    if counts.sum() > FEW_TILES * counts.numel() * per_row and unknown_parts(seen):
        shown = shown_tiles(seen, batch, length)
        counts = shown.sum(-1).clamp(min=1)
        nearest = shown.flatten(0, 1).to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    if counts.sum() > most:
        return None
    sizes, groups, head = rounded_up(counts.flatten()), [], torch.zeros((), dtype=torch.long)
    for n in sizes.unique().tolist():
        query = (sizes == n).nonzero()[:, 0]
        row = query // per_row
        if nearest is None:
            key = first.flatten()[query].clamp(max=per_row - n)[:, None] + torch.arange(n)
        else:
            key = nearest[query, :n]
        q = ((query % per_row)[:, None] * TILE + torch.arange(TILE))[:, :, None]  # (P, TILE, 1)
        k = (key[..., None] * TILE + torch.arange(TILE)).flatten(1)[:, None]  # (P, 1, n * TILE)
        is_seen = seen(row[:, None, None], head, q.clamp(max=length - 1), k.clamp(max=length - 1)) & (k < length)
        is_seen = is_seen.expand(len(query), TILE, n * TILE)[:, None]
        if (is_seen == is_seen[:1]).all():  # as inside a window: one mask for all tiles
            is_seen = is_seen[:1]
        groups.append(Group(None if is_seen.all() else is_seen, query, key + (row * per_row)[:, None]))
    order = None if len(groups) == 1 else torch.argsort(torch.cat([group.query for group in groups]))
    return Tiles(groups, order=order)


def shown_tiles(seen, batch: int, length: int) -> torch.Tensor:
    """(B, Q, Q), whether a tile of queries sees any of a tile of keys: computes the whole mask, a part at a time."""
    row, head, parts = torch.arange(batch)[:, None, None], torch.zeros((), dtype=torch.long), []
    short = -length % TILE
    key = torch.arange(length + short).clamp(max=length - 1)[None, None]  # repeated tokens show nothing new
    for query in torch.arange(length + short).clamp(max=length - 1).split(QUERIES_AT_A_TIME):
        is_seen = seen(row, head, query[None, :, None], key).expand(batch, len(query), length + short)
        parts.append(is_seen.unflatten(2, (-1, TILE)).any(-1).unflatten(1, (-1, TILE)).any(2))
    return torch.cat(parts, dim=1)


def rounded_up(counts: torch.Tensor) -> torch.Tensor:
    """Round up each count to one of a few numbers, so that there are few groups."""
    sizes, most = [1], int(counts.max())
    while sizes[-1] < most:
        sizes.append(min(most, max(sizes[-1] + 1, sizes[-1] * 5 // 4)))
    sizes = torch.tensor(sizes)
    return sizes[torch.searchsorted(sizes, counts)]


# --------------------------------------------------------------------------------------------------------- attention


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
    """transformers' attention interface: query (B, H, T, K), key and value (B, G, S, K) -> (B, T, H, K), no weights.

    softcap: of the scores (Gemma Team 2024, section 2). s_aux: (H,), scores of sinks beside the keys (Xiao et al.
    2024). position_bias: (1 or B, H, T, S), added to the scores.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(attention_mask, MadeMask):
        attend = in_tiles if isinstance(attention_mask, Tiles) else in_strides
        return attend(query, key, value, attention_mask, scaling, dropout, softcap, s_aux, position_bias), None
    is_trained = any(x is not None and x.requires_grad for x in (attention_mask, position_bias))
    if softcap is None and s_aux is None and not (is_trained and query.device.type == "cpu"):
        rest |= {} if position_bias is None else {"position_bias": position_bias}
        sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return sdpa(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **rest)
    is_causal = rest.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and is_causal and query.shape[2] > 1:
        # As with sdpa's flag, the first query is at the first key; a static cache has more keys than there are queries.
        attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = additive(attention_mask, query.dtype)
    out = by_products(query, key, value, (position_bias, attention_mask), scaling, dropout, softcap, s_aux)
    return out.transpose(1, 2).contiguous(), None


def in_tiles(query, key, value, tiles: Tiles, scaling, dropout, softcap=None, sinks=None, bias=None) -> torch.Tensor:
    """query (B, H, T, K), key and value (B, G, T, K) -> (B, T, H, K)."""
    batch, _, length, _ = query.shape
    query, key, value = map(cut, in_attention_dtype(query, key, value))
    outputs = []
    for group, mask in zip(tiles.groups, tiles.masks(query.dtype, bias, query.shape[0] // batch)):
        q = query if tiles.order is None else query.index_select(0, group.query)
        q = q.transpose(1, 2)  # (P, H, TILE, K)
        k, v = (x.index_select(0, group.key.flatten()).unflatten(0, group.key.shape) for x in (key, value))
        k, v = (x.flatten(1, 2).transpose(1, 2) for x in (k, v))  # (P, G, n * TILE, K)
        if softcap is None and sinks is None and not (mask is not None and mask.requires_grad):
            grouped = q.shape[1] != k.shape[1]
            out = scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling, enable_gqa=grouped)
        else:
            out = by_products(q, k, v, (mask,), scaling, dropout, softcap, sinks)
        outputs.append(out.transpose(1, 2))
    out = outputs[0] if tiles.order is None else torch.cat(outputs).index_select(0, tiles.order)
    return out.reshape(batch, -1, *out.shape[2:])[:, :length]


def cut(x_BHTK: torch.Tensor) -> torch.Tensor:
    """(B, H, T, K) -> (B * Q, TILE, H, K)."""
    x_BTHK, short = x_BHTK.transpose(1, 2), -x_BHTK.shape[2] % TILE
    x_BTHK = pad(x_BTHK, (0, 0, 0, 0, 0, short)) if short else x_BTHK
    return x_BTHK.reshape(-1, TILE, *x_BTHK.shape[2:])
