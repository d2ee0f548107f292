"""Engines whose processes each hold the whole model: one process, and torch's DistributedDataParallel."""

from pathlib import Path

from ...accounting.lora import is_adapted
from ..checkpoints.stored_weights import has_other_names, stored_weights
from .engine import Engine


class OneProcess(Engine):
    """One process without any sharing."""

    whole = True

    def load_weights(self, trainer, folder: Path) -> bool:
        """Trainer loads files only if the names in them are those of the model's weights."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if is_adapted(model) or not has_other_names(model, folder):
            return False
        model.load_state_dict(stored_weights(model, folder), strict=True)
        return True


class DDP(Engine):
    """Each process has the whole model, and reads different rows."""

    name = "DDP"
    whole = True
    load_weights = OneProcess.load_weights
    wrappers = ("DistributedDataParallel",)
