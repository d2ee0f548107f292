"""Which engine runs: the table of all engines, and the choice by recipe and launcher."""

import os

from ...errors import UserError
from ...recipes.parallelism import MESH, engine_of
from ...recipes.schema import TrainingSection
from .deepspeed_engine import DeepSpeed
from .engine import WAY_OUT, Engine, is_true
from .mesh import Mesh
from .pipeline import Stages
from .whole import DDP, OneProcess

# {engine: whether the training section or the launcher's variables ask for it}; the first match runs.
ENGINES: dict[type[Engine], object] = {
    Stages: lambda section: section.parallelism is not None and section.parallelism.pp > 1,
    Mesh: lambda section: section.parallelism is not None and engine_of(section.parallelism) == MESH,
    DeepSpeed: lambda section: section.extra.get("deepspeed") is not None or is_true("ACCELERATE_USE_DEEPSPEED"),
    DDP: lambda section: int(os.environ.get("WORLD_SIZE", 1)) > 1,
    OneProcess: lambda section: True,
}


def engine_for(section: TrainingSection, trusts_checkpoints: bool = False) -> Engine:
    """The engine that recipe and launcher ask for. trusts_checkpoints: as for Engine."""
    engine = next(engine for engine, is_asked in ENGINES.items() if is_asked(section))
    return engine(section, trusts_checkpoints)


def check_one_device(n_gpu: int) -> None:
    """Raise UserError where Trainer would train on several GPUs of one process by nn.DataParallel.

    n_gpu: TrainingArguments.n_gpu. The batch would be n_gpu times the recipe's, and each step slower than with DDP.
    """
    if n_gpu > 1:
        raise UserError(
            f"one process sees {n_gpu} GPUs, and nn.DataParallel would train on them, with {n_gpu} times the batch; "
            f"write {WAY_OUT} ddp, or choose one of them: CUDA_VISIBLE_DEVICES=0"
        )
