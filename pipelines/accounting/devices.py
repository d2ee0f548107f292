"""Devices that a run is planned for: memory and peak FLOP/s, by the names that people write, such as 8xH100-80GB.

Standard library only: a mistake in a name is told before torch is imported.
"""

import re
from dataclasses import dataclass

from ..errors import UserError, nearest
from .host_memory import memory_of_this_machine

# Dense bfloat16 tensor-core rates from the vendors' data sheets, in FLOP/s; the first key in the device's name counts,
# as words of their own: an L40 is no L4.
DATA_SHEET_BF16 = {
    "GB200": 2500e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
# The same sheets, fp32 outside of tensor cores: what torch computes fp32 in unless it is allowed to round to TF32.
DATA_SHEET_FP32 = {"B200": 75e12, "H200": 67e12, "H100": 67e12, "A100": 19.5e12}

CPU = "cpu"
# The number in the name x 10^9 bytes. The cards report about 5 % more, which the driver's own memory and the gaps of
# torch's allocator take.
MEMORY = {
    "A100-40GB": 40_000_000_000,
    "A100-80GB": 80_000_000_000,
    "H100-80GB": 80_000_000_000,
    "H200-141GB": 141_000_000_000,
    "B200-192GB": 192_000_000_000,
}


@dataclass(frozen=True)
class Devices:
    """`count` equal devices. memory: bytes of each; bf16, fp32: peak FLOP/s of each; None: to be measured."""

    name: str
    count: int
    memory: int
    bf16: float | None
    fp32: float | None

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    def __str__(self) -> str:
        return f"{self.count} x {self.name}"


def devices_of(text: str) -> Devices:
    """`8xH100-80GB` -> Devices; without a number one; a name without memory where only one has it; `cpu` this machine.

    Raises UserError for an unknown device, with the nearest name, and for a number that is no count.
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?([A-Za-z].*)", text.strip())
    if match is None:
        raise UserError(f"--devices={text!r} is not of the form 8xH100-80GB; known: {', '.join([*MEMORY, CPU])}")
    count, given = int(match[1] or 1), match[2]
    if not 1 <= count <= 10**6:
        raise UserError(f"--devices={text!r}: {count} is no number of devices; write 1 to 1000000")
    if given.lower() == CPU:
        return Devices(CPU, count, memory_of_this_machine() // count, None, None)
    known = {name.lower(): name for name in MEMORY}
    named = [name for low, name in known.items() if given.lower() in (low, low.partition("-")[0])]
    if len(named) != 1:
        # A memory that a card does not come with is nearer to that card than letters can tell.
        card = [name for low, name in known.items() if given.lower().startswith(low.partition("-")[0])]
        near = " or ".join(named or card) or known.get(nearest(given.lower(), known) or "")
        what = f"; did you mean {near}?" if near else f"; known: {', '.join([*MEMORY, CPU])}"
        raise UserError(f"--devices={text!r}: {given} is no device that plan knows{what}")
    (name,) = named
    card = name.partition("-")[0]
    return Devices(name, count, MEMORY[name], DATA_SHEET_BF16[card], DATA_SHEET_FP32[card])
