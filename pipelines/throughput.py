"""Floating-point operations per token, peak rates, and the share of the peak a run reaches (MFU).

Convention: PaLM (Chowdhery et al. 2022, appendix B). A trained token costs 6 x the weights it is multiplied with
(output head included, embedding look-ups not) + 12 x layers x heads x head size x context for the attention scores.
"""

import time

import torch

# Dense bfloat16 tensor-core rates of the vendors' data sheets, in FLOP/s; matched against the device's name in order.
DATA_SHEET_BF16 = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def multiplied_weights(model: torch.nn.Module) -> int:
    """Number of weights a token is multiplied with in one forward pass (tied heads count, look-ups do not)."""
    total = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D":  # Conv1D: GPT-2's Linear
            weight = module.weight
            total += getattr(weight, "ds_numel", weight.numel())  # ZeRO-3 leaves empty shards and the true size
    return total


def flops_per_token(model: torch.nn.Module, sequence_length: int) -> int:
    """Training FLOPs (forward and backward) per token at this context length."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 6 * multiplied_weights(model) + 12 * config.num_hidden_layers * heads * head_dim * sequence_length


def peak_flops(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """Peak FLOP/s of one device and where the number is from: a data sheet, or a matrix product timed here."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for key, rate in DATA_SHEET_BF16.items():
            if key in name:
                return rate, f"data sheet, {key}"
    return measured_flops(device, dtype), f"measured {dtype} matrix product"


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.5) -> float:
    """Best rate of square matrix products repeated for `seconds`, in FLOP/s: the best, as others may use the device."""
    size = 8192 if device.type == "cuda" else 1024
    # A generator of its own: taking numbers from the global one would change the dropout of the run that asks.
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(size, size, device=device, generator=generator).to(dtype)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def prefers_bf16(device_type: str) -> bool:
    """Whether `bf16: auto` means yes: GPUs with bf16 tensor cores, CPUs with bf16 instructions (AMX, AVX512-BF16).

    A CPU without them emulates bf16 and trains slower than in fp32.
    """
    if device_type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device_type == "cpu":
        capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else cpu_flags()
        return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    return device_type in ("mps", "xpu", "npu")


def cpu_flags() -> dict[str, bool]:
    """CPU instruction sets from the kernel, for torch versions that do not list them; empty where unknown."""
    try:
        with open("/proc/cpuinfo") as info:
            line = next((line for line in info if line.startswith(("flags", "Features"))), "")
    except OSError:  # no such file: not Linux
        return {}
    return dict.fromkeys(line.split(":")[-1].split(), True)
