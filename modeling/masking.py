"""Which key each query may see. Masks are made once per forward pass, one per kind of layer.

Built on transformers' mask functions, which return what the attention backend wants (nothing at all where the backend
can do causality by itself).
"""

import torch
from transformers.masking_utils import create_causal_mask, packed_sequence_mask_function


def document_ids_from_positions(position_ids: torch.Tensor) -> torch.Tensor:
    """Number the documents of packed rows: (B, T) positions that restart at each document -> (B, T) ids from 0."""
    starts = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1
    return starts.cumsum(-1)


def causal_masks(config, inputs_embeds, attention_mask, past_key_values, document_ids=None) -> dict:
    """Return {layer type: mask} for the layer types the config names.

    Args:
        inputs_embeds: (B, T, D); only its shape, dtype and device are read.
        attention_mask: None, a (B, S) padding mask, a ready mask of four axes, or (as `generate` prepares for static
            caches) a dict of ready masks.
        document_ids: None, or (B, T): tokens see only tokens with the same id. Unlike transformers' own detection it
            holds with a padding mask and with a cache, too, and costs no host sync.
    """
    if isinstance(attention_mask, dict):
        return attention_mask
    packed = None if document_ids is None else packed_sequence_mask_function(document_ids)
    mask = create_causal_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        past_key_values=past_key_values,
        and_mask_function=packed,
    )
    return dict.fromkeys(config.layer_types, mask)
