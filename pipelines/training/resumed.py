"""What a resumed run takes from its settings, although its checkpoint holds another value of it."""

from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .learning_rate import replace_shares


class ResumedSettings(TrainerCallback, ExportableState):
    """Settings that may change between a run and its resumption (recipes/compose.py), and the length of the run, hold.

    A checkpoint has the steps between two logs, validations and checkpoints, and the learning rate of the next step.
    It also has the best metric so far, which says nothing beside values of another metric; so the metric's name is
    saved with it.
    """

    metric: str | None = None

    def state(self) -> dict:
        return {"args": {}, "attributes": {"metric": self.metric}}

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        state.compute_steps(args, state.max_steps)
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # accelerate may have wrapped it
        if isinstance(scheduler, LambdaLR):
            replace_shares(scheduler, scheduler.lr_lambdas)
        self.metric = args.metric_for_best_model
        if saved_attributes(state, self).get("metric", self.metric) != self.metric:
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None


def saved_attributes(state, callback: ExportableState) -> dict[str, Any]:
    """What a checkpoint holds of a callback.

    One that the checkpoint does not know gets a place in the state: Trainer would look for it at the next checkpoint.
    """
    return state.stateful_callbacks.setdefault(type(callback).__name__, callback.state()).get("attributes", {})
