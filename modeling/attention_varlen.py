"""Rows of documents of different lengths without a mask: each document attended by itself.

Packed rows hold several documents; `Unpadded` makes one such row of padded ones.

With a block-diagonal mask sdpa computes all T x T scores of a row and drops most of them, and on CUDA a mask rules the
flash kernels out. N = B x T tokens of all rows; C documents of one length L; B, T, H, G, K as in `attention`.
"""

import functools
import inspect
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from .attention_block_sizes import block_sizes
from .attention_blocks import attend_in_blocks, make_blocks, reads_in_place, window_rule
from .products import SLOW_ON_CPU

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None
KERNEL_OPTIONS = frozenset() if varlen_attn is None else frozenset(inspect.signature(varlen_attn).parameters)

# On a CPU the gradients of sdpa in bf16 take 6 x as long as in fp32 for documents of 12 tokens, 2 x for 330, as long
# for 512, and less above (AMX, torch 2.15).
SHORT_DOCUMENT = 512


@dataclass
class DocumentLengths:
    """The lengths of the documents of all rows, in order, as layers hand them on.

    No list: a compiled layer looks at how many numbers a list has, and not into an object that it hands on.
    """

    lengths: list[int]


def document_lengths(document_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> list[int]:
    """Lengths of the documents of all rows, in order, for `varlen_sdpa`; they sum to B * T.

    A document ends with its row. Each run of padding is a document of its own, whatever ids it has: no token sees it.
    The lengths are read on the host: one synchronisation, to be paid once per forward pass.

    Args:
        document_ids: (B, T), the same within a document. attention_mask: None or (B, T), 0 at padding.
    """
    starts = torch.diff(document_ids, dim=-1) != 0
    if attention_mask is not None:
        before, after = attention_mask[:, :-1] != 0, attention_mask[:, 1:] != 0
        starts = (starts & before & after) | (before != after)
    starts = pad(starts, (1, 0), value=True).flatten().cpu().nonzero()[:, 0]
    return torch.diff(starts, append=starts.new_tensor([document_ids.numel()])).tolist()


def attends_documents_apart(x: torch.Tensor, dropout: float) -> bool:
    """Whether `varlen_sdpa` is the fast way for activations like `x`: on a CPU, or by torch's flash kernel.

    Never in a graph of fixed shapes, compiled or exported: lengths are read on the host. `dropout`: of the attention
    weights, which that kernel does not have.
    """
    if torch.compiler.is_compiling():
        return False
    if x.device.type == "cpu":
        return True
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    has_kernel = x.is_cuda and {"scale", "window_size"} <= KERNEL_OPTIONS
    return has_kernel and dtype in (torch.float16, torch.bfloat16) and dropout == 0


def varlen_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    is_causal: bool,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of each document alone: query (B, H, T, K), key and value (B, G, T, K) -> (B, T, H, K).

    On CUDA, half types go through one flash kernel for all documents where torch has it. Elsewhere every document, or
    run of documents of one length, is a call of sdpa; on a CPU without instructions for the half type, and for
    gradients of short documents, in fp32.

    Args:
        lengths: of the documents of all rows, in order (see `document_lengths`).
        scaling: factor of the scores. dropout: share of the attention weights to drop.
        window: tokens see keys less than so many tokens away, which counts themselves; None: the whole document.

    Raises:
        ValueError: the lengths do not sum to B * T.
    """
    batch, _, tokens, _ = query.shape
    if sum(lengths) != batch * tokens:
        raise ValueError(f"documents of {sum(lengths)} tokens in all do not fill {batch} rows of {tokens}")
    if window is not None and window >= max(lengths):
        window = None
    device_type, dtype = query.device.type, query.dtype
    if torch.is_autocast_enabled(device_type):  # as sdpa itself does; the flash kernel's operator does not
        dtype = torch.get_autocast_dtype(device_type)
    slow = dtype in SLOW_ON_CPU or (torch.is_grad_enabled() and query.requires_grad and max(lengths) < SHORT_DOCUMENT)
    computed_in = torch.float32 if device_type == "cpu" and dtype.itemsize == 2 and slow else dtype
    with torch.autocast(device_type, enabled=False):
        flat = [x.to(computed_in).transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
        attend = _flash if _has_kernel(flat[0], scaling, dropout) else _one_by_one
        out = attend(*flat, lengths, is_causal, scaling, dropout, window)
        return out.to(dtype).unflatten(0, (batch, tokens))


def _one_by_one(query, key, value, lengths, is_causal, scaling, dropout, window) -> torch.Tensor:
    """(N, H, K), (N, G, K) and (N, G, K) -> (N, H, K)."""
    runs = [(length, len(list(run))) for length, run in groupby(lengths)]
    sizes = [length * count for length, count in runs]
    outputs = []
    # split, not slices: the gradient of many slices would be a sum of as many tensors, each as long as all documents.
    for (length, count), *parts in zip(runs, query.split(sizes), key.split(sizes), value.split(sizes)):
        parts = [x.unflatten(0, (count, length)).transpose(1, 2) for x in parts]
        if window is None or window >= length:
            out = _sdpa(*parts, scaling, dropout, is_causal=is_causal).transpose(1, 2)
        else:
            near = window - 1, 0 if is_causal else window - 1
            of_blocks = block_sizes(near, in_place=reads_in_place(query.device.type))
            blocks = make_blocks(window_rule(window, is_causal), of_blocks, parts[0][:, 0])
            out = attend_in_blocks(*parts, blocks, scaling, dropout)
        outputs.append(out.flatten(0, 1))
    return torch.cat(outputs)


def _sdpa(query, key, value, scaling, dropout, **mask) -> torch.Tensor:
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scaling, enable_gqa=grouped, **mask)


def _has_kernel(query, scaling, dropout) -> bool:
    """Whether torch's flash kernel for sequences of different lengths can do it: it has limits that sdpa has not."""
    return (
        query.is_cuda
        and torch.version.hip is None
        and query.dtype in (torch.float16, torch.bfloat16)
        and {"scale", "window_size"} <= KERNEL_OPTIONS
        and dropout == 0
        and scaling > 0
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.backends.cuda.flash_sdp_enabled()
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _flash(query, key, value, lengths, is_causal, scaling, dropout, window) -> torch.Tensor:
    """As `_one_by_one`, in one call; `dropout` is 0."""
    options = {}
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and "enable_gqa" in KERNEL_OPTIONS:
        options["enable_gqa"] = True
    elif groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    bounds, longest = _bounds(tuple(lengths), query.device), max(lengths)
    lookback = -1 if window is None else window - 1
    options["window_size"] = (lookback, 0 if is_causal else lookback)
    return varlen_attn(query, key, value, bounds, bounds, longest, longest, scale=scaling, **options)


@functools.lru_cache(maxsize=4)
def _bounds(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Where each document starts, and the end, (documents + 1,): copied to the device once for all layers of a pass."""
    with torch.inference_mode(False):  # kept for later passes, in which gradients may be wanted
        # Pinned: the host does not wait for the copy.
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, pin_memory=device.type == "cuda")
        return bounds.to(device, non_blocking=True)


# Below this share of padding the copies cost more than the padding.
LEAST_PADDING = 0.05


# On a CPU oneDNN keeps memory for every number of rows that it has multiplied, and the allocator finds no room of the
# right size among what earlier steps left: with a new number at each step a run grows by gigabytes.
ROWS_MULTIPLE, FEWEST_ROWS = 128, 1024


def rounded_up(rows: int) -> int:
    """The number of rows to compute for `rows` on a CPU: one of few numbers, at most an eighth more."""
    return rows if rows < FEWEST_ROWS else -(-rows // ROWS_MULTIPLE) * ROWS_MULTIPLE


class Unpadded(NamedTuple):
    """Indices of the real tokens of padded rows.

    index (N,): among all B * T, row by row, on a CPU the shortest row first, then some padding (see `rounded_up`).
    position_ids (1, N). lengths: of the rows in that order, as `varlen_sdpa` takes them; padding is one more document.
    tokens: how many of N are real.
    """

    index: torch.Tensor
    position_ids: torch.Tensor
    lengths: list[int]
    shape: tuple[int, int]
    tokens: int

    @classmethod
    def of(cls, attention_mask: torch.Tensor) -> "Unpadded | None":
        """Read a (B, T) padding mask, on the host; None where there is too little padding, or some amid a text."""
        real_BT = attention_mask != 0
        starts = real_BT[:, 0].long() + (real_BT[:, 1:] & ~real_BT[:, :-1]).sum(-1)
        starts, lengths = torch.stack((starts, real_BT.sum(-1))).tolist()  # together: the host waits once
        tokens = sum(lengths)
        if not 0 < tokens <= (1 - LEAST_PADDING) * real_BT.numel() or max(starts) > 1:
            return None
        if real_BT.is_cuda:  # a sort knows how many there are; `nonzero` would ask the device once more
            index = torch.argsort(real_BT.flatten().logical_not().to(torch.uint8), stable=True)[:tokens]
        else:  # rows of one length side by side are one call of sdpa
            order = torch.tensor(sorted(range(len(lengths)), key=lengths.__getitem__))
            row, column = real_BT[order].nonzero(as_tuple=True)
            index, lengths = order[row] * real_BT.shape[1] + column, sorted(lengths)
            filler = rounded_up(tokens) - tokens
            if 0 < filler <= real_BT.numel() - tokens:
                index = torch.cat((index, real_BT.flatten().logical_not().nonzero()[:filler, 0]))
                lengths.append(filler)
        lengths = [length for length in lengths if length]
        columns = torch.arange(attention_mask.shape[1], device=attention_mask.device).expand(real_BT.shape)
        return cls(index, columns.flatten()[index][None], lengths, tuple(real_BT.shape), tokens)

    def take(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (1, N, D)."""
        return x_BTD.expand(*self.shape, -1).flatten(0, 1).index_select(0, self.index)[None]

    def put_back(self, x_1ND: torch.Tensor) -> torch.Tensor:
        """(1, N, D) -> (B, T, D), zeros at padding."""
        padded, real = x_1ND.new_zeros(self.shape[0] * self.shape[1], x_1ND.shape[-1]), slice(self.tokens)
        return padded.index_copy(0, self.index[real], x_1ND[0, real]).unflatten(0, self.shape)
