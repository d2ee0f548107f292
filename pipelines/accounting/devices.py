"""Devices that a run is planned for: memory and peak FLOP/s, by names such as 8xH100-80GB.

Standard library only: a misspelt name is reported before torch is imported.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UserError, nearest
from .host_memory import memory_of_this_machine


class Card(NamedTuple):
    """A card's numbers in the vendor's data sheets.

    bf16: FLOP/s of dense bfloat16 on tensor cores. fp32: FLOP/s without tensor cores, as torch computes fp32 unless it
    may round to TF32. bandwidth: bytes/s of its memory. link: bytes/s that it sends to the others of its machine by
    NVLink. network: bytes/s of its share of the network cards, in the vendor's machines of 8.
    """

    bf16: float
    fp32: float | None = None
    bandwidth: float | None = None
    link: float | None = None
    network: float | None = None


# card_of takes the first row whose name is part of the device's name.
CARDS = {
    "GB200": Card(2500e12),
    "GH200": Card(989e12),
    "B200": Card(2250e12, 75e12, 8e12, 900e9, 50e9),
    "H200 NVL": Card(835e12),
    "H200": Card(989e12, 67e12, 4.8e12, 450e9, 50e9),
    "H100 PCIe": Card(756e12),
    "H100 NVL": Card(835e12),
    "H100": Card(989e12, 67e12, 3.35e12, 450e9, 50e9),
    "A100-80GB": Card(312e12, 19.5e12, 2.039e12, 300e9, 25e9),
    "A100": Card(312e12, 19.5e12, 1.555e12, 300e9, 25e9),
    "L40S": Card(362e12),
    "L4": Card(121e12),
    "A10": Card(125e12),
    "RTX 4090": Card(165e12),
    "RTX 3090": Card(71e12),
}
CPU = "cpu"
# Memory is the number in the name x 10^9 bytes. Cards report about 5 % more, which the driver and the fragmentation of
# torch's allocator take.
OF_CARDS = (("A100", 40), ("A100", 80), ("H100", 80), ("H200", 141), ("B200", 192))
MEMORY = {f"{card}-{size}GB": size * 10**9 for card, size in OF_CARDS}


def card_of(name: str) -> str | None:
    """The first card of CARDS whose name is part of the device's name, as whole words: an L40 is no L4."""
    return next((card for card in CARDS if re.search(rf"\b{re.escape(card)}\b", name)), None)


@dataclass(frozen=True)
class Devices:
    """`count` equal devices. memory: bytes of each; bf16, fp32: peak FLOP/s of each; None: to be measured.

    bandwidth, link, network: as of a Card; None: unknown.
    """

    name: str
    count: int
    memory: int
    bf16: float | None
    fp32: float | None
    bandwidth: float | None = None
    link: float | None = None
    network: float | None = None

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    def __str__(self) -> str:
        return f"{self.count} x {self.name}"


def devices_of(text: str) -> Devices:
    """`8xH100-80GB` -> Devices. No number: one device; no memory: the card's, if it has one size; `cpu`: this machine.

    Raises UserError for an unknown device, with the nearest name, and for an impossible number of devices.
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?([A-Za-z].*)", text.strip())
    if match is None:
        raise UserError(f"--devices={text!r} is not of the form 8xH100-80GB; known: {', '.join([*MEMORY, CPU])}")
    count, device = int(match[1] or 1), match[2]
    if not 1 <= count <= 10**6:
        raise UserError(f"--devices={text!r}: {count} is no number of devices; write 1 to 1000000")
    if device.lower() == CPU:
        return Devices(CPU, count, memory_of_this_machine() // count, None, None)
    known = {name.lower(): name for name in MEMORY}
    named = [name for low, name in known.items() if device.lower() in (low, low.partition("-")[0])]
    if len(named) != 1:
        # A card's name with a memory that it does not have: suggest that card, not the name with the nearest letters.
        card = [name for low, name in known.items() if device.lower().startswith(low.partition("-")[0])]
        near = " or ".join(named or card) or known.get(nearest(device.lower(), known) or "")
        what = f"; did you mean {near}?" if near else f"; known: {', '.join([*MEMORY, CPU])}"
        raise UserError(f"--devices={text!r}: {device} is no device that plan knows{what}")
    (name,) = named
    card = CARDS.get(name) or CARDS[name.partition("-")[0]]
    return Devices(name, count, MEMORY[name], *card)
