"""Between which keys a mask function of transformers can show any, read from the parts that it is composed of.

transformers composes masks of small functions of indices (masking_utils.py: causal, windows, chunks, packed documents,
padding, `and_masks`, `or_masks`); a composition holds its parts in its closure. A part that is not known here sets no
bounds, which costs time and is never wrong.

Shapes: B rows, T queries, S keys.
"""

import inspect
from functools import partial

import torch
from transformers import masking_utils


def bounds_of(mask_function, index, keys: int) -> tuple:
    """(first, last): no query of `index` (1 or B, T) sees a key before `first` or after `last`, each (1 or B, T)."""
    if not _is_known(mask_function):
        return torch.zeros_like(index), torch.full_like(index, keys - 1)
    names, cells = mask_function.__code__.co_freevars, mask_function.__closure__ or ()
    parts = {name: cell.cell_contents for name, cell in zip(names, cells)}
    return BOUNDS[mask_function.__qualname__](parts, index, keys)


def _is_known(mask_function) -> bool:
    in_transformers = getattr(mask_function, "__module__", "") == masking_utils.__name__
    return in_transformers and mask_function.__qualname__ in BOUNDS


def unknown_parts(mask_function) -> list:
    """The parts of a mask function whose bounds are not known."""
    if not _is_known(mask_function):
        return [mask_function]
    cells = [cell.cell_contents for cell in mask_function.__closure__ or ()]
    parts = [part for cell in cells for part in (cell if isinstance(cell, tuple) else (cell,))]
    return [unknown for part in parts if inspect.isfunction(part) for unknown in unknown_parts(part)]


def joined_parts(mask_function) -> list:
    """The parts of a mask function of which each has to show a key: those that `and_masks` joins, else itself."""
    if not _is_known(mask_function) or not mask_function.__qualname__.startswith("and_masks"):
        return [mask_function]
    (parts,) = (cell.cell_contents for cell in mask_function.__closure__)
    return [joined for part in parts for joined in joined_parts(part)]


def _everything(parts, index, keys):
    return torch.zeros_like(index), torch.full_like(index, keys - 1)


def _up_to_the_query(parts, index, keys):
    return torch.zeros_like(index), index


def _window(parts, index, keys):
    return index - parts["sliding_window"] + 1, torch.full_like(index, keys - 1)


def _window_to_both_sides(parts, index, keys):
    return index - parts["sliding_window"], index + parts["sliding_window"]


def _chunk(parts, index, keys):
    size, padding = parts["chunk_size"], parts["left_padding"].reshape(-1, 1)
    first = (index - padding).div(size, rounding_mode="floor") * size + padding
    return first, first + size - 1


def _real_tokens(parts, index, keys):
    real = parts["padding_mask"][:, :keys] != 0
    at = torch.arange(real.shape[1], device=real.device)
    first = torch.where(real, at, keys).amin(-1, keepdim=True)
    last = torch.where(real, at, -1).amax(-1, keepdim=True)
    return first + torch.zeros_like(index), last + torch.zeros_like(index)


def _document(parts, index, keys):
    documents = parts["packed_sequence_mask"].contiguous()
    if (documents[:, 1:] < documents[:, :-1]).any():  # numbered in any order: a document may lie in pieces
        return _everything(parts, index, keys)
    of_queries = documents.gather(1, index.expand(documents.shape[0], -1))
    return torch.searchsorted(documents, of_queries), torch.searchsorted(documents, of_queries, right=True) - 1


def _positions_in_documents(parts, index, keys):
    """Used with a mask of the documents, within which positions are consecutive."""
    positions = parts["position_ids"].gather(1, index.expand(parts["position_ids"].shape[0], -1))
    first, last = bounds_of(parts["mask_function"], positions, keys)
    return first + index - positions, last + index - positions


def _joined(parts, index, keys, of_first, of_last) -> tuple:
    first, last = bounds_of(parts["mask_functions"][0], index, keys)
    for part in parts["mask_functions"][1:]:
        bounds = bounds_of(part, index, keys)
        first, last = of_first(first, bounds[0]), of_last(last, bounds[1])
    return first, last


# {qualified name of a part: function(its closure's variables, query indices (1 or B, T), S) -> (first, last) key}; by
# name, as older versions lack some.
BOUNDS = {
    "bidirectional_mask_function": _everything,
    "causal_mask_function": _up_to_the_query,
    "sliding_window_overlay.<locals>.inner_mask": _window,
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": _window_to_both_sides,
    "chunked_overlay.<locals>.inner_mask": _chunk,
    "padding_mask_function.<locals>.inner_mask": _real_tokens,
    "packed_sequence_mask_function.<locals>.inner_mask": _document,
    "remap_positions_for_packed_sequence.<locals>.inner_mask": _positions_in_documents,
    "and_masks.<locals>.and_mask": partial(_joined, of_first=torch.maximum, of_last=torch.minimum),
    "or_masks.<locals>.or_mask": partial(_joined, of_first=torch.minimum, of_last=torch.maximum),
}
