"""Bytes of weights, gradients and optimizer states on each device, by the engine that shards them.

Standard library only; StepMemory.states counts them.
"""

from dataclasses import dataclass

from ..errors import UserError, did_you_mean
from ..recipes.deepspeed_settings import zero_stage
from ..recipes.optimizer_rows import optimizer_of
from ..recipes.parallelism import MESH, ULYSSES, engine_of
from ..recipes.schema import TrainingSection

FP32, HALF = 4, 2


@dataclass(frozen=True)
class Sharing:
    """How an engine shares the states of a run among its devices.

    launched_by: value of --launch. optimizer, gradients, weights: whether they are shared. by_deepspeed: whether
    weights and gradients are kept in the precision of the run, with fp32 copies of the weights in the optimizer, and
    matrices are flattened.
    """

    words: str
    launched_by: str
    optimizer: bool = False
    gradients: bool = False
    weights: bool = False
    by_deepspeed: bool = False

    @property
    def gathers(self) -> bool:
        """Whether FSDP2 gathers weights and reduces gradients while a step runs."""
        return self.weights and not self.by_deepspeed


# The ways to share states, by their names on the command line.
STAGES = {
    "none": Sharing("whole on each device (DDP)", "ddp"),
    "zero1": Sharing("ZeRO-1", "zero1", optimizer=True, by_deepspeed=True),
    "zero2": Sharing("ZeRO-2", "zero2", optimizer=True, gradients=True, by_deepspeed=True),
    "zero3": Sharing("ZeRO-3", "zero3", optimizer=True, gradients=True, weights=True, by_deepspeed=True),
    "fsdp": Sharing("FSDP2", "fsdp2", optimizer=True, gradients=True, weights=True),
}


def stage_of(section: TrainingSection) -> str | None:
    """How the recipe itself shares states, by training.parallelism or .deepspeed; None if it sets none.

    Raises UserError for settings of DeepSpeed that cannot be read.
    """
    settings = section.parallelism
    if settings is not None:
        whole = "fsdp" if settings.dp_shard > 1 else "none"
        return {ULYSSES: "zero3", MESH: whole}[engine_of(settings)]
    if section.extra.get("deepspeed") is None:
        return None
    stage = zero_stage(section)
    return f"zero{stage}" if stage else "none"


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
        return STAGES[self.stage].words


def check_stage(stage: str | None, optimizer: str) -> None:
    """Raise UserError for an unknown stage, or one whose engine cannot run `training.optim`."""
    if stage is not None and stage not in STAGES:
        raise UserError(f"stage={stage!r} is not known{did_you_mean(stage, STAGES)}; known: {', '.join(STAGES)}")
    if stage is not None and optimizer_of(optimizer).whole_matrices and STAGES[stage].by_deepspeed:
        raise UserError(
            f"training.optim={optimizer} needs whole matrices, but DeepSpeed, which {STAGES[stage].words} is of, "
            f"flattens them; set it to adamw, or plan for FSDP2"
        )
