"""Energy of a run: measured by the machine's counters if they can be read, else estimated as power times time.

The counters cover processors and GPUs and all that runs on them, but no power supply, cooling or network.
"""

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..words import counted
from .devices import CPU, watts_of

JOULES = 3.6e6  # in a kWh
POWERCAP = Path("/sys/class/powercap")  # of Linux
SAMPLED = 60.0  # seconds between samples; a RAPL counter wraps around after some 40 minutes at full power


@dataclass
class Counter:
    """kind: RAPL or NVML. read: the joules so far; they wrap around to 0 at `wraps_at` (0: never)."""

    kind: str
    read: Callable[[], float]
    wraps_at: float = 0.0


def rapl_counters(root: Path) -> list[Counter]:
    """A counter for each processor package and for its memory; none if only root may read them."""
    counters = []
    for folder in sorted(root.glob("intel-rapl:*")):  # AMD's, too
        file = folder / "energy_uj"
        try:
            name, most = ((folder / entry).read_text().strip() for entry in ("name", "max_energy_range_uj"))
            file.read_text()
        except OSError:
            continue
        if name.startswith(("package", "dram")):
            counters.append(Counter("RAPL", lambda file=file: int(file.read_text()) / 1e6, int(most) / 1e6))
    return counters


def nvml_counters(uuids: Sequence[str]) -> list[Counter]:
    """A counter for each of these GPUs; none if pynvml is not installed, or a card has no counter (before Volta)."""
    if not uuids or importlib.util.find_spec("pynvml") is None:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
        counters = [
            Counter("NVML", lambda handle=handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
            for handle in handles
        ]
        for counter in counters:
            counter.read()
    except pynvml.NVMLError:
        return []
    return counters


class EnergyMeter:
    """Measures the energy that a machine takes from now on.

    Args:
        device: the GPU that it computes on, by torch's name; `cpu`: its processors.
        gpus: UUIDs of the GPUs that are used; empty for `cpu`.
        machines: the number of machines that do the same work.
        root: the folder of RAPL's counters.
    """

    def __init__(self, device: str, gpus: Sequence[str] = (), machines: int = 1, root: Path = POWERCAP):
        self.device, self.gpus, self.machines = device, gpus, machines
        self.counters = [*rapl_counters(root), *nvml_counters(gpus)]
        self.joules, self._began = 0.0, time.monotonic()
        self._last, self._ended = [counter.read() for counter in self.counters], threading.Event()
        self._sampling = threading.Thread(target=self._sample_often, daemon=True)
        if self.counters:
            self._sampling.start()

    def _sample_often(self) -> None:
        while not self._ended.wait(SAMPLED):
            self.sample()

    def sample(self) -> None:
        """Add the joules that the counters have counted since the last sample."""
        now = [counter.read() for counter in self.counters]
        for counter, before, after in zip(self.counters, self._last, now):
            self.joules += after - before + (counter.wraps_at if after < before else 0.0)
        self._last = now

    def facts(self) -> dict:
        """{"kwh", "measured": whether no part is estimated, "how": in words}; stops the meter."""
        self._ended.set()
        if self._sampling.is_alive():
            self._sampling.join()
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
    """(watts of all devices, the source of the number). name: of the device, as `plan` spells it."""
    watts, why = watts_of(name)
    count = 1 if name == CPU else count
    return count * watts, f"{count} x {watts:g} W, {why}"
