"""The name of the hardware of a run."""

import os
import platform
from pathlib import Path

import torch


def hardware_words(device: torch.device) -> str:
    """`NVIDIA H100 80GB HBM3`, or the processor's name and the cores that this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor_name()}, {cores} cores" if device.type == "cpu" else f"{device.type} of {processor_name()}"


def processor_name() -> str:
    """The processor's name: on Linux from /proc, because platform.processor() gives only the architecture there."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []  # not on Linux
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
