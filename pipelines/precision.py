"""The precision that a run computes in, by its training section: what `bf16: auto` means on a device."""

import torch

KNOWN_OF_CPU = getattr(torch.cpu, "get_capabilities", dict)()  # empty if torch cannot report them


def prefers_bf16(device_type: str) -> bool:
    """Whether `bf16: auto` means yes: on GPUs with bf16 tensor cores, and CPUs that multiply bf16 faster than fp32."""
    if device_type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device_type == "cpu":
        return outruns_fp32_in_bf16()
    return device_type in ("mps", "xpu", "npu")


def outruns_fp32_in_bf16() -> bool:
    """Whether this x86 CPU multiplies bf16 faster than fp32, judged by its features so that all processes agree.

    It does with AMX, and with AMD's AVX512-BF16, for which data sheets promise twice the rate (not measured by us).
    With Intel's AVX512-BF16 without AMX, bf16 takes twice the time of fp32 (torch 2.15).
    """
    by_amd = str(KNOWN_OF_CPU.get("cpu_name")).startswith("AMD")
    return bool(KNOWN_OF_CPU.get("amx_bf16") or (by_amd and KNOWN_OF_CPU.get("avx512_bf16")))


def device_type() -> str:
    accelerator = torch.accelerator.current_accelerator()
    return "cpu" if accelerator is None or not torch.accelerator.is_available() else accelerator.type


def resolve_bf16(section, device_type: str) -> bool:
    """Whether training runs under bfloat16 autocast; with `auto` it does not where the recipe sets fp16."""
    if section.bf16 == "auto":
        return not section.extra.get("fp16") and prefers_bf16(device_type)
    return section.bf16


def computed_dtype(section) -> torch.dtype:
    """What training and the trainer's evaluations compute in on this machine."""
    if resolve_bf16(section, device_type()):
        return torch.bfloat16
    return torch.float16 if section.extra.get("fp16") else torch.float32
