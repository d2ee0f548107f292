"""The precision that `bf16: auto` means on a device."""

import torch
from anyformer.modeling.products import outruns_fp32_in_bf16


def prefers_bf16(device_type: str) -> bool:
    """Whether `bf16: auto` means yes: GPUs with bf16 tensor cores, and CPUs whose bf16 products outrun fp32 ones."""
    if device_type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device_type == "cpu":
        return outruns_fp32_in_bf16()
    return device_type in ("mps", "xpu", "npu")
