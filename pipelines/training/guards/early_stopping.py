"""Early stopping: training ends after several validations in a row without a new best one."""

from transformers import EarlyStoppingCallback


class EarlyStopping(EarlyStoppingCallback):
    """transformers' callback, which counts the validations since the best one, for AnyformerTrainer.

    A resumed run continues the count of its checkpoint. transformers does that only with
    restore_callback_states_from_checkpoint, which replaces all callbacks that have a state.
    """

    @property
    def has_ended(self) -> bool:
        """Whether the number of validations since the best one has reached the patience."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_train_begin(self, args, state, control, **kwargs):
        # Trainer expects an entry for this callback when it saves; an old checkpoint may have none.
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state()).get("attributes", {})
        counted = saved.get("early_stopping_patience_counter", 0)
        self.early_stopping_patience_counter = 0 if state.best_metric is None else counted

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if f"eval_{args.metric_for_best_model}" in metrics:  # not in the evaluation of whole splits at the end
            super().on_evaluate(args, state, control, metrics, **kwargs)

    def sentence(self, state, metric: str) -> str:
        """The sentence that says why the training ended."""
        ended = f"ended after step {state.global_step} of {state.max_steps}: {metric} was"
        if not state.best_global_step:
            return f"{ended} undefined (NaN) in all validations (evaluation.patience); the last model is kept"
        return (
            f"{ended} no better in the last {self.early_stopping_patience_counter} validations (evaluation.patience), "
            f"the best is of step {state.best_global_step}"
        )
