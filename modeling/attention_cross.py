"""Cross-attention of a decoder: turns a forward's arguments about the encoder into arguments of the layers.

Shapes as in attention.py; S tokens of the encoder.
"""

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask

from .attention_masks import document_ids_from_positions, takes_no_mask


def read_encoder(
    stack,
    x_BTD,
    position_ids,
    cache,
    encoder_hidden_states=None,
    encoder_attention_mask=None,
    encoder_position_ids=None,
    **others,
) -> tuple:
    """Return (the cache, with a part for the encoder's keys; keyword arguments of the layers).

    Without `encoder_hidden_states` the layers skip cross-attention, as in transformers' classes.

    Args:
        stack: the decoder's model.
        position_ids: None, or (B or 1, T), which restart at each document of packed rows. Tokens then see the encoder's
            tokens of their own document only, by `encoder_position_ids` (B or 1, S), which restart in the same order.
        cache: None, a cache of self-attention, or one of self- and cross-attention.
        encoder_hidden_states: (B, S, D). encoder_attention_mask: (B, S), 0 at padding.

    Raises ValueError for packed rows without `encoder_position_ids`, for `cu_seq_lens_q`, and without cross-attention.
    """
    if cache is not None and not isinstance(cache, EncoderDecoderCache):
        cache = EncoderDecoderCache(cache, DynamicCache())
    layers = [] if cache is None else cache.cross_attention_cache.layers
    if any(layer.is_sliding or hasattr(layer, "states") for layer in layers):  # made by `generate`, from the config
        cache.cross_attention_cache = DynamicCache()
    if encoder_hidden_states is None:
        return cache, others
    if getattr(stack.layers[0], "cross_attn", None) is None:
        raise ValueError(
            "encoder_hidden_states cannot be read: this decoder was built without cross-attention; build it from a "
            "config with add_cross_attention=True"
        )
    document_ids = None
    if others.get("cu_seq_lens_q") is not None:
        raise ValueError("cu_seq_lens_q has the borders of one side; give position_ids and encoder_position_ids")
    if position_ids is not None:
        document_ids = _documents(position_ids.expand(x_BTD.shape[0], -1), encoder_position_ids, encoder_hidden_states)
    mask = cross_mask(stack.config, x_BTD, encoder_hidden_states, encoder_attention_mask, document_ids)
    encoder = {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": mask, "encoder_cache": cache}
    return cache, others | encoder


def _documents(position_ids, encoder_position_ids, encoder_hidden_states):
    """The document ids of both sides, (B, T) and (B, S), or None where each row is one document."""
    rows = encoder_hidden_states.shape[0]
    if encoder_position_ids is not None:
        return [document_ids_from_positions(x.expand(rows, -1)) for x in (position_ids, encoder_position_ids)]
    if not torch.compiler.is_compiling() and (document_ids_from_positions(position_ids)[:, -1] > 0).any():
        raise ValueError(
            "position_ids restart within a row, but encoder_position_ids are missing; they say which of the encoder's "
            "tokens belong to which document"
        )
    return None


def cross_mask(config, x_BTD, encoder_hidden_states, encoder_attention_mask, documents=None):
    """The mask by which a decoder's tokens (B, T, D) see an encoder's (B, S, D), or None where they see all.

    documents: None, or the document ids of both sides, (B, T) and (B, S): tokens see only those of the same document.
    """
    together = None
    if documents is not None:
        decoder_ids, encoder_ids = documents

        def together(batch_idx, head_idx, q_idx, kv_idx):
            return decoder_ids[batch_idx, q_idx] == encoder_ids[batch_idx, kv_idx]

    if encoder_attention_mask is None and together is None and takes_no_mask(config):
        return None
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=x_BTD,
        attention_mask=encoder_attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        and_mask_function=together,
    )
