"""A resumed run uses the settings of its recipe where its checkpoint holds other values."""

import json
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from ...recipes.differences import of_best_metric
from ...storage.checkpoints import RUN_FILE
from ..learning_rate import replace_shares
from .run_folder import read_identity


class ResumedSettings(TrainerCallback):
    """Replaces settings that Trainer has read from the checkpoint by those of the resumed run's recipe.

    These are the steps between two logs, validations and checkpoints, and the learning rate of the next step, which a
    longer run may change. The best metric so far is dropped if another metric, or one of other rows, now chooses the
    best model. run_identity: JSON text with the resumed run's recipe.
    """

    stored: dict[str, Any] | None = None  # the recipe of the checkpoint

    def __init__(self, run_identity: str):
        self.recipe = json.loads(run_identity).get("recipe", {})

    def begin(self, checkpoint: str | Path | None) -> None:
        """Called when training begins; reads the recipe of a resumed run's checkpoint."""
        identity = None if checkpoint is None else read_identity(Path(checkpoint) / RUN_FILE)
        self.stored = None if identity is None else identity["recipe"]

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        state.compute_steps(args, state.max_steps)
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # accelerate may have wrapped it
        if isinstance(scheduler, LambdaLR):
            replace_shares(scheduler, scheduler.lr_lambdas)
        before = (self.stored or {}).get("evaluation", {})
        now = self.recipe.get("evaluation", {}) | {"best_metric": args.metric_for_best_model}
        if any(before.get(name, now.get(name)) != now.get(name) for name in of_best_metric(now["best_metric"])):
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None
