"""A resumed run uses the settings of its recipe where its checkpoint holds other values."""

from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from ...storage.checkpoints import RUN_FILE
from ..learning_rate import replace_shares
from .run_folder import read_identity


class ResumedSettings(TrainerCallback):
    """Replaces settings that Trainer has read from the checkpoint by those of the resumed run's recipe.

    These are the steps between two logs, validations and checkpoints, and the learning rate of the next step, which a
    longer run may change. The best metric so far is dropped if another metric now chooses the best model.
    """

    stored: dict[str, Any] | None = None  # the recipe of the checkpoint

    def begin(self, checkpoint: str | Path | None) -> None:
        """Called when training begins; reads the recipe of a resumed run's checkpoint."""
        identity = None if checkpoint is None else read_identity(Path(checkpoint) / RUN_FILE)
        self.stored = None if identity is None else identity["recipe"]

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        state.compute_steps(args, state.max_steps)
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # accelerate may have wrapped it
        if isinstance(scheduler, LambdaLR):
            replace_shares(scheduler, scheduler.lr_lambdas)
        evaluation = (self.stored or {}).get("evaluation", {})
        if evaluation.get("best_metric", args.metric_for_best_model) != args.metric_for_best_model:
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None
