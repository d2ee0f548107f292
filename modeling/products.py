"""How a CPU multiplies: half types that are slower than fp32, and linear layers on the few rows of generation."""

import torch
from torch import nn

KNOWN_OF_CPU = getattr(torch.cpu, "get_capabilities", dict)()  # nothing where torch does not tell


def outruns_fp32_in_bf16() -> bool:
    """Whether this x86 CPU multiplies bf16 faster than fp32: by its name, so that all processes of a run decide alike.

    It does with AMX, and with AVX512-BF16 by AMD, whose data sheets promise twice the rate (not measured by us). With
    Intel's AVX512-BF16 without AMX, bf16 takes twice the time of fp32 (torch 2.15).
    """
    by_amd = str(KNOWN_OF_CPU.get("cpu_name")).startswith("AMD")
    return bool(KNOWN_OF_CPU.get("amx_bf16") or (by_amd and KNOWN_OF_CPU.get("avx512_bf16")))


def _is_slow(dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return True
    if dtype == torch.float16:
        return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    is_x86 = KNOWN_OF_CPU.get("architecture") == "x86_64"
    return not (outruns_fp32_in_bf16() if is_x86 else torch.ops.mkldnn._is_mkldnn_bf16_supported())


# Half types whose products take longer than fp32's on this CPU: without instructions for them, ten times as long.
SLOW_ON_CPU = frozenset(dtype for dtype in (torch.bfloat16, torch.float16) if _is_slow(dtype))

# On a CPU with AMX the weight first, W x^T, where W is too large for the core's own cache and its rows are not short:
# without AMX, generating for 8 rows takes 1.1 x the time so. Time of `linear` / time of this, with one thread (torch
# 2.15, 256 to 768 channels): 8 rows 1.2 to 2.0, 32 rows 1.3, 128 rows 1.0; 4 rows of a vocabulary 1.4; 2 rows 0.7.
LEAST_ROWS, MOST_ROWS, LEAST_WEIGHTS, LEAST_CHANNELS = 8, 32, 2**18, 256
LEAST_ROWS_IF_WIDE, WIDE = 4, 4096


def product(x_NI, weight, bias=None):
    """(N, I) -> (N, O), as nn.functional.linear; either rows or columns of the result lie together in memory."""
    if not weight_comes_first(x_NI.shape[0], weight):
        return nn.functional.linear(x_NI, weight, bias)
    out_NO = torch.mm(weight, x_NI.t()).t()
    return out_NO if bias is None else out_NO + bias


def weight_comes_first(rows: int, weight) -> bool:
    """Whether W x^T is the faster way to multiply so many rows by a weight (O, I)."""
    if not LEAST_ROWS_IF_WIDE <= rows <= MOST_ROWS or weight.device.type != "cpu" or not KNOWN_OF_CPU.get("amx_tile"):
        return False
    outputs, channels = weight.shape
    large = channels >= LEAST_CHANNELS and outputs * channels >= LEAST_WEIGHTS
    return large and (rows >= LEAST_ROWS or outputs >= WIDE)
