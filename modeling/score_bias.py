"""Score biases of position schemes, made for each layer and folded into masks; models without such a scheme have none.

Shapes as in attention.py.
"""

import torch
from torch import nn


def score_biases(scheme, x_BTD, batch, names, kinds, config) -> list[dict]:
    """Each layer's keyword argument with its (B, H, T, S) bias; caches of different kinds differ in their keys.

    For layers that attend in segments it is "segment_bias", for a block of queries and the keys in its window.
    """
    rows = x_BTD.shape[0]  # flex attention indexes this axis, so it is there; expanding costs no memory
    distances = {name: distances_of(name, kind, batch, x_BTD, config) for name, kind in kinds.items()}
    if isinstance(scheme, nn.ModuleList):
        biases = [table(x_BTD, distances[name]).expand(rows, -1, -1, -1) for table, name in zip(scheme, names)]
    else:
        of_kinds = {name: scheme(x_BTD, far_TS).expand(rows, -1, -1, -1) for name, far_TS in distances.items()}
        biases = [of_kinds[name] for name in names]
    argument = {name: "segment_bias" if kind.traits.segments else "position_bias" for name, kind in kinds.items()}
    return [{argument[name]: bias_BHTS} for name, bias_BHTS in zip(names, biases)]


def distances_of(name: str, kind, batch, x_BTD, config) -> torch.Tensor:
    """(T, S), the positions of queries minus those of keys; for kinds with segments those in a block."""
    length, device, cache = x_BTD.shape[1], x_BTD.device, batch.past_key_values
    if batch.distances is not None and name in batch.distances:
        return batch.distances[name]
    if kind.traits.segments:
        return kind.attention.block_distances(kind.traits.lookback(config), length, config.segment_length, device)
    past, keys, first_key = 0, length, 0
    if cache is not None:
        past = cache.get_seq_length(kind.index)
        keys, first_key = cache.get_mask_sizes(length, kind.index)
    query_index = torch.arange(length, device=device) + past
    return query_index[:, None] - (torch.arange(keys, device=device) + first_key)[None, :]


def fold_masks(per_layer: list[dict], is_causal: bool) -> list[dict]:
    """Masks and score biases as one tensor, made once for all layers that share them."""
    pairs, folded = [], []
    for arguments in per_layer:
        if "position_bias" in arguments:
            mask, bias = arguments["attention_mask"], arguments["position_bias"]
            if mask is not None and not torch.is_tensor(mask):  # a backend's mask object, which takes the bias, too
                folded.append(arguments)
                continue
            # Compared by `is`, not by `id()`: a compiled step would guard on that number, and never be used again.
            combined = next((combined for m, b, combined in pairs if m is mask and b is bias), None)
            if combined is None:
                combined = fold_into_bias(bias, mask, is_causal)
                pairs.append((mask, bias, combined))
            arguments = {"attention_mask": combined}
        folded.append(arguments)
    return folded


def fold_into_bias(bias_BHTS: torch.Tensor, mask, is_causal: bool) -> torch.Tensor:
    """A score bias and a mask as one additive mask (B, H, T, S); sdpa would combine them in every layer.

    mask: None (all keys, or with `is_causal` those up to the query's own), bool, or additive.

    Hidden keys get the lowest number of the dtype in which the scores will be added: under autocast to bf16 that of
    fp32 would become -inf, and a query that sees no key, as padding in a window, would give nan. Rows that see the same
    share one mask, (1, H, T, S). Except on CPUs it has the dtype to which every layer would otherwise cast it.
    """
    bias_BHTS, device_type = _shared_by_rows(bias_BHTS, mask), bias_BHTS.device.type
    narrow_to = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    least = max(torch.finfo(dtype).min for dtype in (bias_BHTS.dtype, narrow_to) if dtype is not None)
    if mask is None and is_causal and bias_BHTS.shape[2] > 1:  # one query and no mask: it is the last token
        mask = torch.ones(bias_BHTS.shape[2:], dtype=torch.bool, device=bias_BHTS.device).tril()
    if mask is None:
        combined = bias_BHTS
    elif mask.dtype == torch.bool:
        combined = torch.where(mask, bias_BHTS, least)
    else:
        combined = bias_BHTS + mask if narrow_to is None else (bias_BHTS + mask).clamp(min=least)
    # Not if the bias is learned: its gradients would be added up in that dtype.
    if narrow_to is not None and device_type != "cpu" and not combined.requires_grad:
        combined = combined.to(narrow_to)
    return combined


def _shared_by_rows(bias_BHTS, mask):
    """The bias of one row, where all rows have it and the mask does not tell them apart."""
    if mask is not None and (mask.ndim < 4 or mask.shape[0] != 1):
        return bias_BHTS
    if bias_BHTS.requires_grad and bias_BHTS.device.type == "cpu":  # plain products would copy it in every layer
        return bias_BHTS
    return bias_BHTS[:1] if bias_BHTS.stride(0) == 0 else bias_BHTS
