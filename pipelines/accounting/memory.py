"""Bytes of weights, gradients and optimizer states on each device, by the engine that shares them among devices.

Formulas: Rajbhandari et al. 2020 (ZeRO), section 3 and figure 1. Without DeepSpeed the weights are fp32; it keeps
weights and gradients in the precision of the run, and the fp32 weights in the optimizer. Standard library only.
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

    beside: copies of weights and gradients while a step runs: DDP's buckets and autocast's bf16 weights, or the whole
    weights of two blocks where weights are shared.
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


def training_states(
    stage: str,
    parameters: int,
    moments: int,
    devices: int,
    half: bool,
    largest_block: int,
    average: bool = False,
    frozen: int = 0,
) -> TrainingStates:
    """What each of `devices` devices holds in a stage of STAGES.

    Args:
        parameters: number of parameters. moments: bytes of the optimizer's states of those that are trained.
        half: whether the run computes in bf16 or fp16. largest_block: parameters of the largest layer.
        average: whether an exponential moving average of the weights is kept. frozen: of the parameters those that are
            not trained, and have neither gradients nor fp32 copies in an optimizer.
    """
    _, (splits_optimizer, splits_gradients, splits_weights) = STAGES[stage]
    by_deepspeed = stage.startswith("zero")
    trained, each = parameters - frozen, HALF if by_deepspeed and half else FP32
    weights, gradients = parameters * each, trained * each
    optimizer = moments + (FP32 * trained if by_deepspeed else 0) + (FP32 * parameters if average else 0)
    if splits_weights:
        beside = 2 * largest_block * (HALF if half else FP32) if devices > 1 else 0
    else:
        casts = HALF * parameters if half and not by_deepspeed else 0
        beside = casts + (gradients if devices > 1 and not by_deepspeed else 0)
    return TrainingStates(
        stage,
        _shared(weights, devices, splits_weights),
        _shared(gradients, devices, splits_gradients),
        _shared(optimizer, devices, splits_optimizer),
        beside,
    )


def _shared(size: int, devices: int, splits: bool) -> int:
    return -(-size // devices) if splits else size
