"""The precision that `bf16: auto` means on a device."""

import torch

KNOWN_OF_CPU = getattr(torch.cpu, "get_capabilities", dict)()  # nothing where torch does not tell


def prefers_bf16(device_type: str) -> bool:
    """Whether `bf16: auto` means yes: GPUs with bf16 tensor cores, and CPUs whose bf16 products outrun fp32 ones."""
    if device_type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device_type == "cpu":
        return outruns_fp32_in_bf16()
    return device_type in ("mps", "xpu", "npu")


def outruns_fp32_in_bf16() -> bool:
    """Whether this x86 CPU multiplies bf16 faster than fp32: by its name, so that all processes of a run decide alike.

    It does with AMX, and with AVX512-BF16 by AMD, whose data sheets promise twice the rate (not measured by us). With
    Intel's AVX512-BF16 without AMX, bf16 takes twice the time of fp32 (torch 2.15).
    """
    by_amd = str(KNOWN_OF_CPU.get("cpu_name")).startswith("AMD")
    return bool(KNOWN_OF_CPU.get("amx_bf16") or (by_amd and KNOWN_OF_CPU.get("avx512_bf16")))
