"""Devices that a run is planned for: memory and peak FLOP/s, by the names that people write, such as 8xH100-80GB.

Standard library only: a mistake in a name is told before torch is imported.
"""

import os
import re
from dataclasses import dataclass

from ..errors import UserError, nearest
from .host_memory import memory_of_this_machine

# Dense bfloat16 tensor-core rates from the vendors' data sheets, in FLOP/s; row_of says which row is a device's.
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
# The most that a card takes, in watts, of the same sheets; of several forms the one with most (SXM).
BOARD_WATTS = {
    "GB200": 1200,
    "GH200": 1000,
    "B200": 1000,
    "H200 NVL": 600,
    "H200": 700,
    "H100 PCIe": 350,
    "H100 NVL": 400,
    "H100": 700,
    "A100": 400,
    "L40S": 350,
    "L4": 72,
    "A10": 150,
    "RTX 4090": 450,
    "RTX 3090": 350,
}
CORE_WATTS = 10  # a core of a server and its share of the memory, roughly: processors of 64 cores take 280 to 400
OTHER_WATTS = 300  # a card that is not in the table

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


def row_of(table: dict, name: str) -> str | None:
    """The first key of a table that is in a device's name, as words of their own: an L40 is no L4."""
    return next((key for key in table if re.search(rf"\b{re.escape(key)}\b", name)), None)


def watts_of(name: str) -> tuple[float, str]:
    """(the most watts that a device takes, where the number is from); `cpu`: all cores of this machine together."""
    if name == CPU:
        cores = os.cpu_count() or 1
        return CORE_WATTS * cores, f"{CORE_WATTS} W assumed for each of {cores} cores"
    key = row_of(BOARD_WATTS, name)
    if key is None:
        return OTHER_WATTS, f"assumed, as {name} is in no table"
    return BOARD_WATTS[key], f"the most that an {key} takes"


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
