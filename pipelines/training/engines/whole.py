"""Engines whose processes each hold the whole model: one process, and torch's DistributedDataParallel."""

from pathlib import Path

from .engine import Engine


class OneProcess(Engine):
    """Nothing is shared."""

    whole = True

    def load_weights(self, trainer, folder: Path, by_trainer) -> None:
        from ..checkpoints.stored_weights import load_stored
        from ..lora import is_adapted

        if is_adapted(trainer.model):
            by_trainer()
        else:
            load_stored(trainer.accelerator.unwrap_model(trainer.model), folder, by_trainer)


class DDP(Engine):
    """Each process has the model, and rows of its own."""

    name = "DDP"
    whole = True
    load_weights = OneProcess.load_weights
    wrappers = ("DistributedDataParallel",)
