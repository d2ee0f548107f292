"""The precision that `bf16: auto` means on a device."""

import torch

AMD = "AuthenticAMD"


def prefers_bf16(device_type: str) -> bool:
    """Whether `bf16: auto` means yes: GPUs with bf16 tensor cores, and CPUs whose bf16 products outrun fp32 ones.

    Those CPUs have AMX, or AVX512-BF16 by AMD, whose data sheets promise twice the rate of fp32 (not measured by us).
    Intel's AVX512-BF16 without AMX is slower: there torch 2.15 multiplied bf16 matrices at half the rate of fp32, and a
    vision transformer trained at 0.7 of its rate in fp32. Names decide and no measurement, so that all processes of a
    run decide alike.
    """
    if device_type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device_type == "cpu":
        vendor, flags = vendor_and_flags()
        return "amx_bf16" in flags or (vendor == AMD and "avx512_bf16" in flags)
    return device_type in ("mps", "xpu", "npu")


def vendor_and_flags(path: str = "/proc/cpuinfo") -> tuple[str, frozenset[str]]:
    """(vendor's name, instruction sets) of the first CPU as Linux lists them; both empty without such a list."""
    try:
        with open(path) as info:
            first = info.read().split("\n\n", 1)[0]
    except OSError:  # not Linux
        return "", frozenset()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    return fields.get("vendor_id", ""), frozenset(fields.get("flags", "").split())
