"""Half types that a CPU multiplies slower than fp32."""

import torch

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
