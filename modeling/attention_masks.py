"""Which key each query may see. Masks are made once per forward pass, one per kind of attention.

Built on transformers' mask functions, which return what the attention backend wants (None where the backend handles
causality by itself).
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import Cache
from transformers.masking_utils import (
    and_masks,
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    packed_sequence_mask_function,
)
from transformers.utils.generic import is_flash_attention_requested

from .traits import ATTENTION_KINDS, Kind, one_way_kind

# The name of a cache in transformers' mask functions and outputs.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"  # < 5.24


def given_cache(past_key_values, kwargs: dict):
    """The cache, passed as `past_key_values` (transformers < 5.24) or as `cache`, which is removed from `kwargs`.

    The `cache` of continuous batching holds pages of many texts, and stays there. Raises ValueError for two caches.
    """
    if not isinstance(cache := kwargs.get("cache"), Cache | None):
        return past_key_values
    kwargs.pop("cache", None)
    if cache is not None and past_key_values is not None:
        raise ValueError("give the cache once: cache and past_key_values are two names of one argument")
    return past_key_values if cache is None else cache


def document_ids_from_positions(position_ids: torch.Tensor) -> torch.Tensor:
    """Number the documents of packed rows: (B, T) positions that restart at each document -> (B, T) ids from 0."""
    starts = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1
    return starts.cumsum(-1)


def documents_of_borders(cu_seq_lens: torch.Tensor, shape) -> tuple:
    """(ids, positions), both (B, T), of documents. cu_seq_lens: their borders, 0 to B * T, in rows laid end to end."""
    index = torch.arange(shape[0] * shape[1], device=cu_seq_lens.device)
    ids = torch.searchsorted(cu_seq_lens[1:].long(), index, right=True)
    return ids.view(shape), (index - cu_seq_lens[ids]).view(shape)


def first_tokens(attention_mask, document_ids):
    """Index of the first token of each token's document (B, T), or of each row behind padding (B,); None: 0."""
    if document_ids is not None:
        return torch.searchsorted(document_ids, document_ids)
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    return (attention_mask.cumsum(-1) == 0).sum(-1)


def counted_from(first, mask_function):
    """A mask function with indices counted from `first_tokens`: a document's mask is the same anywhere in a row."""
    if first is None:
        return mask_function

    def counted(batch_idx, head_idx, q_idx, kv_idx):
        start = first[batch_idx] if first.ndim == 1 else first[batch_idx, q_idx]
        return mask_function(batch_idx, head_idx, q_idx - start, kv_idx - start)

    counted.__dict__.update(mask_function.__dict__)  # what backends may know of it
    return counted


def takes_no_mask(config) -> bool:
    """Whether the backend hides the future by a flag, without a mask."""
    return config._attn_implementation in ("sdpa", "anyformer")


class LayerKind(NamedTuple):
    """A kind of attention in a model.

    index: of its first layer. layer_type: the name by which caches know it. mask_function: config -> a mask function as
    in transformers.masking_utils; None: full or windowed. attention: the class of kinds that keep states, whose
    `token_positions` makes what their layers get in place of a mask; None for others.
    """

    traits: Kind
    index: int
    layer_type: str
    mask_function: Callable | None
    attention: type | None


def layer_kinds(config) -> dict[str, LayerKind]:
    """{name: LayerKind} of the kinds of attention in a model."""
    names, kinds = config.attention_kinds, {}
    for name in dict.fromkeys(names):
        traits, index = ATTENTION_KINDS[name], names.index(name)
        by_states = traits.load() if traits.keeps_states else None
        mask = None if traits.own_scores else traits.load()
        kinds[name] = LayerKind(traits, index, config.layer_types[index], mask, by_states)
    return kinds


def make_masks(
    config,
    inputs_embeds,
    attention_mask,
    past_key_values=None,
    document_ids=None,
    kinds=None,
    seen_by_all=None,
) -> dict:
    """Return {kind of attention: mask} for the kinds the config names; for those with states, their token positions.

    Args:
        kinds: what `layer_kinds` returns, for callers that have it at hand.
        inputs_embeds: (B, T, D); only its shape, dtype and device are read.
        attention_mask: None, a (B, S) padding mask, a ready mask of four axes, or (as `generate` prepares for static
            caches) a dict of ready masks.
        document_ids: None, or (B, T): tokens see only tokens with the same id. Unlike transformers' own detection it
            works with a padding mask and with a cache, too, and costs no host sync.
        seen_by_all: None, or (B, P), nonzero at tokens that all of their document see: in local_global_attention, and
            in causal models, as a prefix (Raffel et al. 2020, section 3.2.1), there only within a layer's window.

    Raises ValueError for a prefix that a kind of attention or the backend cannot show to the tokens before it.
    """
    if seen_by_all is not None and config.is_causal:
        check_prefix(config, attention_mask)
    if isinstance(attention_mask, dict):
        return attention_mask
    packed = [] if document_ids is None else [packed_sequence_mask_function(document_ids)]
    masks, inputs = {}, {"config": config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
    # If only the future is to be hidden, sdpa's is_causal flag does it without a mask. transformers decides likewise,
    # older versions not under torch.compile.  # transformers < 5.23
    plain = attention_mask is None and past_key_values is None and not packed and takes_no_mask(config)
    plain = plain and (seen_by_all is None or not config.is_causal)
    for name, kind in (layer_kinds(config) if kinds is None else kinds).items():
        if kind.attention is not None:
            if attention_mask is not None and attention_mask.ndim == 4:
                raise ValueError(f"attention_mask has four axes, but {name} layers have no such scores; give (B, S)")
            given = inputs_embeds, attention_mask, past_key_values, document_ids
            masks[name] = kind.attention.token_positions(kind.traits.lookback(config), *given)
            continue
        own = kind.mask_function
        hides_nothing = plain and fits_window(config, kind.traits, inputs_embeds.shape[1])
        if own is None and (hides_nothing or (not packed and sees_every_key(kind, **inputs, cache=past_key_values))):
            masks[name] = None
            continue
        overlays = (
            packed if own is None else [*packed, counted_from(first_tokens(attention_mask, document_ids), own(config))]
        )
        options = {"and_mask_function": and_masks(*overlays) if overlays else None}
        if seen_by_all is not None and (kind.traits.global_tokens or config.is_causal):
            nearer = config.sliding_window if kind.traits.windowed and config.is_causal else None
            options["or_mask_function"] = seen_keys_mask_function(seen_by_all != 0, nearer)
        if config.is_causal:
            create = create_sliding_window_causal_mask if kind.traits.windowed else create_causal_mask
            # The index of a layer with such keys: by default one with states might be taken.  # transformers < 5.23
            options |= {CACHE: past_key_values, "layer_idx": kind.index}
        else:
            create = create_bidirectional_sliding_window_mask if kind.traits.windowed else create_bidirectional_mask
        masks[name] = create(**inputs, **options)
    return masks


def sees_every_key(kind: LayerKind, config, inputs_embeds, attention_mask, cache) -> bool:
    """Whether one more token sees all keys of a layer. transformers finds it, too, in a twentieth of a small step."""
    if kind.traits.windowed or cache is None or inputs_embeds.shape[1] != 1 or not takes_no_mask(config):
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or getattr(attention_mask, "ndim", 2) != 2:
        return False
    past = cache.get_seq_length(kind.index)
    if cache.get_mask_sizes(1, kind.index) != (past + 1, 0):  # a static cache has keys of later tokens
        return False
    return attention_mask is None or bool(attention_mask.all())


def fits_window(config, traits: Kind, length: int) -> bool:
    """Whether rows of this length fit into the window, which then hides nothing.

    False while exporting: without a branch, the program would serve lengths on one side of the window only.
    """
    if not traits.windowed:
        return True
    return not torch.compiler.is_exporting() and length <= config.sliding_window + (not config.is_causal)


def paged_masks(config, attention_mask, position_ids, cu_seq_lens_q, cu_seq_lens_k) -> tuple:
    """({kind: mask}, {kind: distances}) of a row with tokens of many texts, whose keys a paged cache holds.

    transformers' continuous batching makes masks for full and windowed attention. This adds our other patterns, and
    computes the distances (T, S) that score biases need, the query's position minus the key's. The keys of a text lie
    side by side and end with that of its last query. Distances between texts mean nothing, and are masked.

    Args:
        attention_mask: additive, (1, 1, T, S), or a dict of them by `layer_types`; None with flash kernels.
        position_ids: (1, T). cu_seq_lens_q: (texts + 1,), where each text's queries begin; cu_seq_lens_k: a dict by
            `layer_types`, the same of its keys.
    """
    kinds = dict(zip(config.attention_kinds, config.layer_types))
    if attention_mask is None:
        return None, None
    masks, distances = {}, {}
    for kind, layer_type in kinds.items():
        mask = attention_mask[layer_type] if isinstance(attention_mask, dict) else attention_mask
        ends = (cu_seq_lens_k[layer_type] if isinstance(cu_seq_lens_k, dict) else cu_seq_lens_k)[1:].long()
        index = torch.arange(mask.shape[-1], device=mask.device)
        text = torch.searchsorted(ends, index, right=True).clamp(max=ends.shape[0] - 1)
        last = position_ids[0, cu_seq_lens_q[1:].long() - 1]
        distances[kind] = position_ids[0, :, None] - (last[text] - (ends[text] - 1 - index))
        traits, query = ATTENTION_KINDS[kind], position_ids[0, :, None]
        pattern = None if traits.own_scores else traits.load()
        seen = mask == 0 if pattern is None else (mask == 0) & pattern(config)(0, 0, query, query - distances[kind])
        # Half of the lowest number: adding a score bias cannot overflow, also where padding sees nothing.
        masks[kind] = torch.zeros_like(mask).masked_fill_(~seen, torch.finfo(mask.dtype).min / 2)
    return masks, distances


def seen_keys_mask_function(is_seen: torch.Tensor, nearer: int | None = None):
    """A mask of keys that all queries see (those less than `nearer` away); is_seen: (B, P) bool, of first P keys."""
    prefix_length = is_seen.shape[1]

    def seen_key(batch_idx, head_idx, q_idx, kv_idx):
        seen = is_seen[batch_idx, kv_idx.clamp(max=prefix_length - 1)] & (kv_idx < prefix_length)
        return seen if nearer is None else seen & ((q_idx - kv_idx).abs() < nearer)

    seen_key.takes_tensors = True
    return seen_key


def check_prefix(config, attention_mask) -> None:
    """Raise ValueError where the tokens of a prefix cannot see those after them."""
    if (kind := one_way_kind(config)) is not None:
        raise ValueError(f"prefix_mask: {kind} layers read tokens in their order; full and sliding ones do not")
    if is_flash_attention_requested(config):
        raise ValueError(
            f"prefix_mask: attn_implementation={config._attn_implementation!r} hides the future by itself; sdpa, eager "
            f"and flex_attention take a mask"
        )
    if attention_mask is not None and (isinstance(attention_mask, dict) or attention_mask.ndim != 2):
        raise ValueError("prefix_mask has no effect on a ready attention_mask; give (B, S), 0 at padding")


def flash_sequences(document_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> dict:
    """Packed rows (B, T) as flash kernels take them: each document, or run of padding, is a sequence of one long batch.

    The number of sequences is read on the host, the only synchronisation that varlen kernels cost.
    """
    changes = torch.diff(document_ids, dim=-1) != 0
    if attention_mask is not None:
        changes |= torch.diff(attention_mask.to(document_ids.dtype), dim=-1) != 0
    starts = torch.nn.functional.pad(changes, (1, 0), value=True).flatten().nonzero()[:, 0]
    bounds = torch.nn.functional.pad(starts, (0, 1), value=document_ids.numel()).to(torch.int32)
    longest = document_ids.shape[-1]  # an upper bound is enough for the kernels, and costs no second synchronisation
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
