"""Bytes of weights, gradients and optimizer states on each device, by the engine that shards them.

Standard library only; StepMemory.states counts them.
"""

from dataclasses import dataclass

from ..errors import UserError, did_you_mean
from ..recipes.optimizer_rows import optimizer_of

FP32, HALF = 4, 2

# stage -> (words, whether optimizer states, gradients and weights are shared among the devices)
STAGES = {
    "none": ("whole on each device (DDP)", (False, False, False)),
    "zero1": ("ZeRO-1", (True, False, False)),
    "zero2": ("ZeRO-2", (True, True, False)),
    "zero3": ("ZeRO-3", (True, True, True)),
    "fsdp": ("FSDP2", (True, True, True)),
}


@dataclass(frozen=True)
class TrainingStates:
    """Bytes on each device.

    beside: copies of weights and gradients while a step runs: DDP's buckets and autocast's bf16 weights or, with
    sharded weights, the gathered weights of two blocks.
    """

    stage: str
    weights: int
    gradients: int
    optimizer: int
    beside: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.beside

    @property
    def words(self) -> str:
        return STAGES[self.stage][0]


def check_stage(stage: str | None, optimizer: str) -> None:
    """Raise UserError for an unknown stage, or one whose engine cannot run `training.optim`."""
    if stage is not None and stage not in STAGES:
        raise UserError(f"stage={stage!r} is not known{did_you_mean(stage, STAGES)}; known: {', '.join(STAGES)}")
    if optimizer_of(optimizer).whole_matrices and (stage or "").startswith("zero"):
        raise UserError(
            f"training.optim={optimizer} needs whole matrices, but DeepSpeed, which {STAGES[stage][0]} is of, flattens "
            f"them; set it to adamw, or plan for FSDP2"
        )
