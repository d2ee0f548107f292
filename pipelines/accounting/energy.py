"""Energy of a run: by the counters of the machine where they can be read, else power times time, and said so.

Counted is what processors and GPUs take, of everything that runs on the machine; no power supply, cooling or network.
"""

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..words import counted
from .devices import CPU, watts_of

JOULES = 3.6e6  # of a kWh
POWERCAP = Path("/sys/class/powercap")  # of Linux
SAMPLED = 60.0  # seconds; a RAPL counter begins anew after some 40 minutes at full power


@dataclass
class Counter:
    """kind: RAPL or NVML. read: joules up to now; it begins anew at `wraps_at` (0: never)."""

    kind: str
    read: Callable[[], float]
    wraps_at: float = 0.0


def rapl_counters(root: Path) -> list[Counter]:
    """One for each package of processors and its memory; of a machine whose root alone may read them none."""
    found = []
    for folder in sorted(root.glob("intel-rapl:*")):  # AMD's, too
        file = folder / "energy_uj"
        try:
            name, most = ((folder / each).read_text().strip() for each in ("name", "max_energy_range_uj"))
            file.read_text()
        except OSError:
            continue
        if name.startswith(("package", "dram")):
            found.append(Counter("RAPL", lambda file=file: int(file.read_text()) / 1e6, int(most) / 1e6))
    return found


def nvml_counters(uuids: Sequence[str]) -> list[Counter]:
    """One for each of these GPUs; none where pynvml is not installed, or a card counts nothing (before Volta)."""
    if not uuids or importlib.util.find_spec("pynvml") is None:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
        found = [
            Counter("NVML", lambda handle=handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
            for handle in handles
        ]
        for counter in found:
            counter.read()
    except pynvml.NVMLError:
        return []
    return found


class EnergyMeter:
    """The energy that a machine takes from now on.

    Args:
        device: what it computes on, as torch calls the GPU; `cpu`: its processors.
        gpus: UUIDs of the GPUs that are used; of processors none.
        machines: how many there are that do the same.
        root: where RAPL's counters are.
    """

    def __init__(self, device: str, gpus: Sequence[str] = (), machines: int = 1, root: Path = POWERCAP):
        self.device, self.gpus, self.machines = device, gpus, machines
        self.counters = [*rapl_counters(root), *nvml_counters(gpus)]
        self.joules, self._began = 0.0, time.monotonic()
        self._last, self._ended = [counter.read() for counter in self.counters], threading.Event()
        if self.counters:
            threading.Thread(target=self._sample_often, daemon=True).start()

    def _sample_often(self) -> None:
        while not self._ended.wait(SAMPLED):
            self.sample()

    def sample(self) -> None:
        """Add what the counters say since the last time."""
        now = [counter.read() for counter in self.counters]
        for counter, before, after in zip(self.counters, self._last, now):
            self.joules += after - before + (counter.wraps_at if after < before else 0.0)
        self._last = now

    def facts(self) -> dict:
        """{"kwh", "measured": whether no part is estimated, "how": in words}; the meter ends."""
        self._ended.set()
        self.sample()
        kinds = [counter.kind for counter in self.counters]
        needed, joules, words = "NVML" if self.gpus else "RAPL", self.joules, []
        if kinds:
            words.append(f"measured by {' and '.join(dict.fromkeys(kinds))}")
        if needed not in kinds:
            count, seconds = max(1, len(self.gpus)), time.monotonic() - self._began
            watts, why = watts_of(self.device)
            joules += count * watts * seconds
            words.append(f"estimated: {count} x {watts:g} W ({why}) x {seconds / 3600:.3g} hours")
        elif "RAPL" not in kinds:
            words.append("processors are not counted")
        if self.machines > 1:
            words.append(f"of the first of {counted(self.machines, 'machine')}, times {self.machines}")
        kwh = joules * self.machines / JOULES
        return {"kwh": float(f"{kwh:.4g}"), "measured": needed in kinds, "how": ", ".join(words)}


def planned_power(name: str, count: int) -> tuple[float, str]:
    """(watts of all devices, where the number is from), of devices as `plan` names them."""
    watts, why = watts_of(name)
    count = 1 if name == CPU else count
    return count * watts, f"{count} x {watts:g} W, {why}"
