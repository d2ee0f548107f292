"""Rows in segments: the index of each token in its document, and blocks of queries with the keys in their window.

Shapes as in attention.py, and W tokens before a block, n blocks of C queries, L the segment length. Segments are
counted from a document's start, so a block may hold parts of several; each query sees its own segment.
"""

import torch
from torch.nn.functional import pad


def token_positions(window: int, inputs_embeds, attention_mask=None, past_key_values=None, document_ids=None):
    """The document (-1: padding, or before the row) of each token and of the `window` tokens before, and index in it.

    Args:
        inputs_embeds: (B, T, D); only its shape and device are read.
        attention_mask: None or (B, S), 0 at padding, where S counts past tokens, too.
        document_ids: None or (B, T), from 0; negative ones are padding.

    Returns:
        (B or 1, 2, window + T) int64, or None where the input is one document from its start on.
    """
    length, device = inputs_embeds.shape[1], inputs_embeds.device
    if attention_mask is None and document_ids is None:
        if past_key_values is None or window == 0:
            return None
        index = torch.arange(-window, length, device=device) + past_key_values.get_seq_length()
        return torch.stack((torch.where(index >= 0, 0, -1), index))[None]
    if document_ids is None:
        if window == 0 and length == 1:
            return None  # a generated token is no padding
        real = attention_mask != 0
        index, documents = real.cumsum(-1) - 1, torch.where(real, 0, -1)
    else:
        real = document_ids >= 0
        if attention_mask is not None:
            real = real & (attention_mask[:, -length:] != 0)
        count = real.cumsum(-1)
        begins = pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
        before = torch.where(begins, count - real.long(), 0).cummax(-1).values
        index, documents = count - before - 1, torch.where(real, document_ids, -1)
    documents, index = pad(documents, (window, 0), value=-1), pad(index, (window, 0))
    return torch.stack((documents, index), dim=1)[:, :, -(window + length) :]


def block_size(length: int, segment_length: int) -> int:
    """C: a segment, or the row if it is shorter."""
    return min(length, segment_length)


def block_distances(window: int, length: int, segment_length: int, device) -> torch.Tensor:
    """(C, W + C): the distance of each query of a block from each key in its window; negative for keys after it."""
    size = block_size(length, segment_length)
    return torch.arange(size, device=device)[:, None] + window - torch.arange(window + size, device=device)


def with_zeros(x: torch.Tensor, before: int = 0, after: int = 0) -> torch.Tensor:
    """Pad axis 2 with `before` zeros in front and `after` zeros behind."""
    return pad(x, (0, 0) * (x.ndim - 3) + (before, after))


def in_blocks(x: torch.Tensor, size: int, window: int = 0):
    """Cut axis 2 into blocks of `size` entries, each behind the `window` entries before it, with which x begins.

    (B, G, W + T, ...) -> (B, n, G, W + C, ...); the last block is filled up with zeros.
    """
    x = with_zeros(x, after=-(x.shape[2] - window) % size)
    return x.unfold(2, window + size, size).movedim((2, -1), (1, 3))


def seen_in_blocks(positions, size: int, window: int, segment_length: int, memory_length: int, part: str):
    """Whether the queries of each block see the keys before and in it, (B or 1, n, C, W + C).

    Args:
        positions: (B or 1, 2, W + T) as `token_positions` gives.
        part: "own" segment, "memory" (the `memory_length` tokens before it), or "both". But for "memory" every query
            sees itself, even padding: a softmax over nothing is nan.
    """
    tail = -(positions.shape[2] - window) % size
    positions = pad(positions, (0, tail), value=-1)
    keys = in_blocks(positions[..., None], size, window)[..., 0].movedim(2, 0)  # (2, B, n, W + C)
    (key_documents, key_index), (documents, index) = keys[..., None, :], keys[..., window:, None]
    distances = block_distances(window, size, size, positions.device)
    start = index // segment_length * segment_length
    seen = (documents == key_documents) & (key_documents >= 0) & (distances >= 0)
    in_segment = key_index >= start
    if part == "memory":
        return seen & ~in_segment & (key_index >= start - memory_length)
    return seen & (in_segment if part == "own" else key_index >= start - memory_length) | (distances == 0)
