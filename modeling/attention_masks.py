"""Which key each query may see. Masks are made once per forward pass, one per kind of attention.

Built on transformers' mask functions, which return what the attention backend wants (nothing at all where the backend
can do causality by itself).
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

from .traits import ATTENTION_KINDS, Kind, implementation, implements

# The name of a cache in transformers' mask functions and outputs.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"  # < 5.24


def given_cache(past_key_values, kwargs: dict):
    """The cache, by the name of transformers < 5.24 or by today's, `cache`, which is taken out of `kwargs`.

    What continuous batching calls `cache` holds pages of many texts, and stays there. Raises ValueError for two.
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
    """(ids, positions), both (B, T), of documents with such borders of all rows laid end to end, from 0 to B * T."""
    index = torch.arange(shape[0] * shape[1], device=cu_seq_lens.device)
    ids = torch.searchsorted(cu_seq_lens[1:].long(), index, right=True)
    return ids.view(shape), (index - cu_seq_lens[ids]).view(shape)


@implements("mask", "strided_attention")
def strided_mask_function(config):
    """Keys of a local band and every `stride`-th before it (Child et al. 2019, section 4.2, both parts in one head)."""
    stride = config.attention_stride

    def strided(batch_idx, head_idx, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (distance < stride) | (distance % stride == 0)

    strided.takes_tensors = True  # of indices, for backends that look at some of the keys
    return strided


def takes_no_mask(config) -> bool:
    """Whether the backend hides the future without a mask, by a flag."""
    return config._attn_implementation in ("sdpa", "anyformer")


class LayerKind(NamedTuple):
    """A kind of attention in a model.

    index: of its first layer. layer_type: the name by which caches know it. mask_function: config -> one of
    transformers.masking_utils, or None: full or windowed. token_positions: of kinds that keep states, which have no
    masks; None: of others.
    """

    traits: Kind
    index: int
    layer_type: str
    mask_function: Callable | None
    token_positions: Callable | None


def layer_kinds(config) -> dict[str, LayerKind]:
    """The kinds of attention that layers of a model have."""
    names, kinds = config.attention_kinds, {}
    for name in dict.fromkeys(names):
        traits, index = ATTENTION_KINDS[name], names.index(name)
        by_states = implementation("attention", name, traits.module).token_positions if traits.keeps_states else None
        kinds[name] = LayerKind(traits, index, config.layer_types[index], implementation("mask", name), by_states)
    return kinds


def make_masks(
    config,
    inputs_embeds,
    attention_mask,
    past_key_values=None,
    document_ids=None,
    kinds=None,
    global_attention_mask=None,
) -> dict:
    """Return {kind of attention: mask} for the kinds the config names; for those with states, their token positions.

    Args:
        kinds: what `layer_kinds` returns, for callers that have it at hand.
        inputs_embeds: (B, T, D); only its shape, dtype and device are read.
        attention_mask: None, a (B, S) padding mask, a ready mask of four axes, or (as `generate` prepares for static
            caches) a dict of ready masks.
        document_ids: None, or (B, T): tokens see only tokens with the same id. Unlike transformers' own detection it
            holds with a padding mask and with a cache, too, and costs no host sync.
        global_attention_mask: None, or (B, T), nonzero where every token sees this one in local_global_attention.
    """
    if isinstance(attention_mask, dict):
        return attention_mask
    packed = [] if document_ids is None else [packed_sequence_mask_function(document_ids)]
    masks, given = {}, {"config": config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
    # Nothing to hide but the future, which sdpa's is_causal flag does: no mask. transformers comes to the same answer,
    # older ones not under torch.compile.  # transformers < 5.23
    plain = attention_mask is None and past_key_values is None and not packed and takes_no_mask(config)
    for name, kind in (layer_kinds(config) if kinds is None else kinds).items():
        if kind.token_positions is not None:
            if attention_mask is not None and attention_mask.ndim == 4:
                raise ValueError(f"attention_mask has four axes, but {name} layers have no such scores; give (B, S)")
            lookback = kind.traits.lookback(config)
            masks[name] = kind.token_positions(lookback, inputs_embeds, attention_mask, past_key_values, document_ids)
            continue
        own = kind.mask_function
        if plain and own is None and fits_window(config, kind.traits, inputs_embeds.shape[1]):
            masks[name] = None
            continue
        overlays = packed if own is None else [*packed, own(config)]
        more = {"and_mask_function": and_masks(*overlays) if overlays else None}
        if kind.traits.global_tokens and global_attention_mask is not None:
            more["or_mask_function"] = global_keys_mask_function(global_attention_mask != 0)
        if config.is_causal:
            create = create_sliding_window_causal_mask if kind.traits.windowed else create_causal_mask
            # Index of a layer with such keys; otherwise a layer with states might be taken.  # transformers < 5.23
            more |= {CACHE: past_key_values, "layer_idx": kind.index}
        else:
            create = create_bidirectional_sliding_window_mask if kind.traits.windowed else create_bidirectional_mask
        masks[name] = create(**given, **more)
    return masks


def fits_window(config, traits: Kind, length: int) -> bool:
    """Whether every token of a row sees all others, or all before it.

    No, while exporting: a program without branches would serve lengths on one side of the window only.
    """
    if not traits.windowed:
        return True
    return not torch.compiler.is_exporting() and length <= config.sliding_window + (not config.is_causal)


def paged_masks(config, attention_mask, position_ids, cu_seq_lens_q, cu_seq_lens_k) -> tuple:
    """({kind: mask}, {kind: distances}) of a row with tokens of many texts, whose keys a paged cache holds.

    transformers' continuous batching makes masks for full attention and for windows. Here patterns of our own are added
    to them, and the positions of queries minus those of keys (T, S) computed, which score biases need: the keys of a
    text lie side by side and end with its last query. Between texts a distance is any number, and hidden.

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
        own = implementation("mask", kind)
        seen = mask == 0 if own is None else (mask == 0) & own(config)(0, 0, distances[kind], 0)
        # Half of the least number: a score bias may be added, also where a filled-up row sees nothing.
        masks[kind] = torch.zeros_like(mask).masked_fill_(~seen, torch.finfo(mask.dtype).min / 2)
    return masks, distances


def global_keys_mask_function(is_global: torch.Tensor):
    """Keys that every query sees; is_global (B, T)."""

    def global_key(batch_idx, head_idx, q_idx, kv_idx):
        return is_global[batch_idx, kv_idx]

    global_key.takes_tensors = True
    return global_key


def flash_sequences(document_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> dict:
    """Packed rows in the layout of flash kernels: each document of each row a sequence of one long batch.

    Args:
        document_ids: (B, T). attention_mask: None or (B, T); runs of padding become sequences of their own.

    Their number is read on the host: the one synchronisation that varlen kernels cost.
    """
    changes = torch.diff(document_ids, dim=-1) != 0
    if attention_mask is not None:
        changes |= torch.diff(attention_mask.to(document_ids.dtype), dim=-1) != 0
    starts = torch.nn.functional.pad(changes, (1, 0), value=True).flatten().nonzero()[:, 0]
    bounds = torch.nn.functional.pad(starts, (0, 1), value=document_ids.numel()).to(torch.int32)
    longest = document_ids.shape[-1]  # an upper bound is enough for the kernels, and costs no second synchronisation
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
