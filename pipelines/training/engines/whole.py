"""Engines whose processes each hold the whole model: one process, and torch's DistributedDataParallel."""

from pathlib import Path

from ..checkpoints.stored_weights import has_other_names, stored_weights
from ..lora import is_adapted
from .engine import Engine


class OneProcess(Engine):
    """One process without any sharing."""

    whole = True

    def load_weights(self, trainer, folder: Path, by_trainer) -> None:
        """Trainer loads files only if the names in them are those of the model's weights."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not is_adapted(model) and has_other_names(model, folder):
            model.load_state_dict(stored_weights(model, folder), strict=True)
        else:
            by_trainer()


class DDP(Engine):
    """Each process has the whole model, and reads different rows."""

    name = "DDP"
    whole = True
    load_weights = OneProcess.load_weights
    wrappers = ("DistributedDataParallel",)
