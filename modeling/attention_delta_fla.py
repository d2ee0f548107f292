"""The delta rule by the kernels of flash-linear-attention (the package `fla`), where it is installed.

This file is not saved with models: only registration.py imports it, which is not saved either. Layers look kernels up
by their kind of attention, unless their attention is "eager", just as they look up a backend in transformers' registry.

Shapes as in attention_delta.py, and N documents of all rows.
"""

import importlib
from functools import partial

import torch
from transformers.utils.import_utils import is_flash_linear_attention_available

from .attention_delta import CHUNK, delta_rule
from .attention_masks import flash_sequences


def kernels() -> dict:
    """{kind of attention: fla's kernel} if transformers finds the package and a device for it."""
    if not is_flash_linear_attention_available():
        return {}
    of_tokens = partial(fla_or_torch, "fla.ops.gated_delta_rule", "chunk_gated_delta_rule")
    return {
        "gated_delta_attention": of_tokens,
        "kimi_delta_attention": partial(fla_or_torch, "fla.ops.kda", "chunk_kda"),
    }


def fla_or_torch(module: str, name: str, q_BHTK, *others, dtype: torch.dtype) -> tuple:
    """As `delta_rule`, by fla for rows of at least CHUNK tokens on a GPU; fla breaks compiled graphs and lacks fp64."""
    plain = q_BHTK.shape[2] < CHUNK or not q_BHTK.is_cuda or q_BHTK.dtype == torch.float64
    if plain or torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return delta_rule(q_BHTK, *others)
    return by_fla(getattr(importlib.import_module(module), name), q_BHTK, *others, dtype=dtype)


def by_fla(run, q_BHTK, k_BHTK, v_BHTV, fades_BHTK, writes_BHT, documents_BT=None, state_BHKV=None, *, dtype) -> tuple:
    """As `delta_rule`, by `run`, which has the signature of fla's chunk_gated_delta_rule.

    dtype: to which queries, keys, values and writes are cast for it; logarithms and states keep theirs.
    """
    batch, _, length, _ = q_BHTK.shape
    q, k, v, writes = (x.transpose(1, 2).to(dtype) for x in (q_BHTK, k_BHTK, v_BHTV, writes_BHT))
    fades = (fades_BHTK.squeeze(-1) if fades_BHTK.shape[-1] == 1 else fades_BHTK).transpose(1, 2)
    options = {"scale": 1.0, "output_final_state": True}
    if documents_BT is None:
        out_BTHV, state = run(q, k, v, fades, writes, initial_state=state_BHKV, **options)
        return out_BTHV.transpose(1, 2).to(v_BHTV.dtype), state
    borders = flash_sequences(documents_BT, None)["cu_seq_lens_q"].long()
    row_ends = torch.arange(batch + 1, device=borders.device) * length
    rows = torch.searchsorted(borders, row_ends)  # the number of each row's first document, and the number of documents
    if state_BHKV is not None:  # of document 0
        goes_on = (documents_BT[:, 0] == 0)[:, None, None, None]
        begins = state_BHKV.new_zeros(len(borders) - 1, *state_BHKV.shape[1:])
        options["initial_state"] = begins.index_copy(0, rows[:-1], state_BHKV * goes_on)
    q, k, v, fades, writes = (x.flatten(0, 1)[None] for x in (q, k, v, fades, writes))
    out, states = run(q, k, v, fades, writes, cu_seqlens=borders, **options)
    return out[0].unflatten(0, (batch, length)).transpose(1, 2).to(v_BHTV.dtype), states[rows[1:] - 1]
