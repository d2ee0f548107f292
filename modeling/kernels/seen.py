"""Between which keys a mask function of transformers looks, read from the parts that it is composed of.

transformers composes what a query sees of small functions of indices (masking_utils.py: causal, windows, chunks, packed
documents, padding, `and_masks`, `or_masks`). The parts stand in the closure of each composition. A part that is not known
here bounds nothing, which is always right and costs time only.

Shapes: B rows, T queries, S keys.
"""

import torch
from transformers import masking_utils

# {qualified name of a part: function(its closure's variables, query indices (1 or B, T), keys S) -> (first, last) key}
BOUNDS = {}


def bounds_of(mask_function, index, keys: int) -> tuple:
    """(first, last): no query of `index` (1 or B, T) sees a key before `first` or after `last`, each (1 or B, T)."""
    name = getattr(mask_function, "__qualname__", "")
    if name not in BOUNDS or getattr(mask_function, "__module__", "") != masking_utils.__name__:
        return torch.zeros_like(index), torch.full_like(index, keys - 1)
    names, cells = mask_function.__code__.co_freevars, mask_function.__closure__ or ()
    return BOUNDS[name]({key: cell.cell_contents for key, cell in zip(names, cells)}, index, keys)


def is_known(mask_function) -> bool:
    """Whether it is composed of transformers' own parts alone, which take tensors of indices of any shape."""
    if getattr(mask_function, "__module__", "") != masking_utils.__name__:
        return getattr(mask_function, "takes_tensors", False)
    parts = [cell.cell_contents for cell in mask_function.__closure__ or ()]
    parts = [each for part in parts for each in (part if isinstance(part, tuple) else [part])]
    return all(is_known(part) for part in parts if callable(part) and not isinstance(part, torch.Tensor))


def is_plain(mask_function) -> bool:
    """Whether sdpa has a flag for it: all keys, or those up to the query."""
    return mask_function in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)


def _bounds(maker, inner: str = ""):
    """Register the bounds of what `maker` returns, or of itself."""

    def register(function):
        BOUNDS[maker.__qualname__ + (f".<locals>.{inner}" if inner else "")] = function
        return function

    return register


@_bounds(masking_utils.causal_mask_function)
def _causal(parts, index, keys):
    return torch.zeros_like(index), index


@_bounds(masking_utils.sliding_window_overlay, "inner_mask")
def _window(parts, index, keys):
    return index - parts["sliding_window"] + 1, torch.full_like(index, keys - 1)


@_bounds(masking_utils.sliding_window_bidirectional_overlay, "inner_mask")
def _window_of_both_sides(parts, index, keys):
    return index - parts["sliding_window"], index + parts["sliding_window"]


@_bounds(masking_utils.chunked_overlay, "inner_mask")
def _chunk(parts, index, keys):
    size, padding = parts["chunk_size"], parts["left_padding"].reshape(-1, 1)
    first = (index - padding).div(size, rounding_mode="floor") * size + padding
    return first, first + size - 1


@_bounds(masking_utils.padding_mask_function, "inner_mask")
def _real(parts, index, keys):
    real = parts["padding_mask"][:, :keys] != 0
    at = torch.arange(real.shape[1], device=real.device)
    first = at.where(real, keys).amin(-1, keepdim=True)
    last = at.where(real, -1).amax(-1, keepdim=True)
    return first + torch.zeros_like(index), last + torch.zeros_like(index)


@_bounds(masking_utils.packed_sequence_mask_function, "inner_mask")
def _document(parts, index, keys):
    documents = parts["packed_sequence_mask"]
    if (documents[:, 1:] < documents[:, :-1]).any():  # numbered in any order: a document may lie in pieces
        return torch.zeros_like(index), torch.full_like(index, keys - 1)
    documents = documents.contiguous()
    of_queries = documents.gather(1, index.expand(documents.shape[0], -1).clamp(max=documents.shape[1] - 1))
    first = torch.searchsorted(documents, of_queries)
    return first, torch.searchsorted(documents, of_queries, right=True) - 1


@_bounds(masking_utils.remap_positions_for_packed_sequence, "inner_mask")
def _by_positions(parts, index, keys):
    """Positions within documents. It stands beside the mask of the documents, in which positions are consecutive."""
    positions = parts["position_ids"].gather(1, index.expand(parts["position_ids"].shape[0], -1).clamp(max=keys - 1))
    first, last = bounds_of(parts["mask_function"], positions, keys)
    return first + index - positions, last + index - positions


@_bounds(masking_utils.and_masks, "and_mask")
def _all(parts, index, keys):
    first, last = zip(*(bounds_of(part, index, keys) for part in parts["mask_functions"]))
    return _reduce(torch.maximum, first), _reduce(torch.minimum, last)


@_bounds(masking_utils.or_masks, "or_mask")
def _any(parts, index, keys):
    first, last = zip(*(bounds_of(part, index, keys) for part in parts["mask_functions"]))
    return _reduce(torch.minimum, first), _reduce(torch.maximum, last)


def _reduce(function, tensors):
    result = tensors[0]
    for each in tensors[1:]:
        result = function(result, each)
    return result
