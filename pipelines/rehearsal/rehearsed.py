"""What a rehearsal finds: bytes, FLOPs and collectives of a step of one rank; times that follow by data sheets."""

from dataclasses import asdict, dataclass

from ..accounting.collectives import Collective
from ..accounting.devices import Devices

WAITED_FOR = ("tp", "ep")  # dimensions whose messages a layer waits for; those of others travel beside the computation


@dataclass(frozen=True)
class Rehearsal:
    """What a step of rank 0 takes, all its micro-batches together.

    mesh: {dimension: ranks}. alive: {what: bytes} at the peak, which comes in `peak_in`, such as "backward lm_head".
    flops_of: {"forward", "backward", "recomputed": number}. seconds_of: {"products", "memory": s} of the operations
    that these bound at the rates of the data sheet; {} where it is not known.
    """

    model: str
    parameters: int
    devices: Devices
    mesh: dict[str, int]
    rows: int
    tokens: int
    accumulation: int
    half: bool
    peak_bytes: int
    peak_in: str
    alive: dict[str, int]
    weights_bytes: int
    gradients_bytes: int
    states_bytes: int
    flops_of: dict[str, int]
    seconds_of: dict[str, float]
    collectives: list[Collective]
    notes: list[str]
    per_node: int = 8

    @property
    def flops(self) -> int:
        return sum(self.flops_of.values())

    @property
    def flops_once(self) -> int:
        """Without those of what is computed again."""
        return self.flops - self.flops_of.get("recomputed", 0)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.devices.memory

    @property
    def times(self) -> dict[str, float]:
        """Seconds of a step: of products, of memory, of messages that are waited for, and of those beside."""
        times = {"products": 0.0, "memory": 0.0} | self.seconds_of | {"waited for": 0.0, "beside": 0.0}
        for each in self.collectives:
            waits = "waited for" if each.dimension in WAITED_FOR else "beside"
            times[waits] += each.seconds(self.devices, self.per_node)
        return times

    @property
    def step_seconds(self) -> float:
        return max(sum(self.times.values()) - self.times["beside"], self.times["beside"])

    @property
    def bound_by(self) -> str:
        """What takes most of a step's time."""
        products, memory, waited, beside = self.times.values()
        messages = beside if beside > products + memory + waited else waited
        return max((products, "matrix products"), (memory, "reads and writes of memory"), (messages, "messages"))[1]

    @property
    def mfu(self) -> float:
        """The share of the devices' peak that forward and backward take in a step."""
        return self.flops_once / (self.devices.bf16 if self.half else self.devices.fp32) / self.step_seconds

    def to_dict(self) -> dict:
        found = asdict(self) | {"devices": str(self.devices), "fits": self.fits, "flops": self.flops}
        for each in found["collectives"]:
            each["ranks"] = len(each["ranks"])
        names = ("times", "step_seconds", "bound_by", "mfu") if self.seconds_of else ()
        return found | {name: getattr(self, name) for name in names}
