"""Settings of the trainer's safety checks."""

from dataclasses import dataclass, field

from ...recipes.schema import TrainingSection
from .step_guard import StepGuard


@dataclass
class Watch:
    """What the trainer does beside training; the defaults are those of a trainer that nobody has told anything.

    steps: what becomes of steps with bad losses or gradients (step_guard.py); stall_minutes: without progress until the
    process ends itself (stall_watchdog.py), None: it does not; router_warning: a layer's experts are reported when less
    than this share of them is at work (router_statistics.py), None: they are not; trusts_checkpoints: whether
    DeepSpeed may read whatever a checkpoint holds (safe_load.py).
    """

    steps: StepGuard = field(default_factory=StepGuard)
    stall_minutes: float | None = None
    router_warning: float | None = None
    trusts_checkpoints: bool = False


def watch_of(section: TrainingSection, trusts_checkpoints: bool = False) -> Watch:
    names = ("stall_minutes", "router_warning")
    return Watch(StepGuard(section), **{n: getattr(section, n) for n in names}, trusts_checkpoints=trusts_checkpoints)
