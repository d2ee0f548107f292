"""Early stopping: the training ends when the validations have not been better for a while."""

from transformers import EarlyStoppingCallback


class EarlyStopping(EarlyStoppingCallback):
    """transformers' callback, which counts the validations since the best one, for AnyformerTrainer.

    A resumed run counts on from its checkpoint. transformers would do so only with
    restore_callback_states_from_checkpoint, which makes new callbacks of all that have a state.
    """

    @property
    def has_ended(self) -> bool:
        """Whether as many validations as it has patience for were no better."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_train_begin(self, args, state, control, **kwargs):
        # A checkpoint that does not know this callback gets a place for it: Trainer would look for it at the next one.
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state()).get("attributes", {})
        counted = saved.get("early_stopping_patience_counter", 0)
        self.early_stopping_patience_counter = 0 if state.best_metric is None else counted

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if f"eval_{args.metric_for_best_model}" in metrics:  # not the whole splits at the end
            super().on_evaluate(args, state, control, metrics, **kwargs)

    def sentence(self, state, metric: str) -> str:
        """Why the training ended."""
        return (
            f"ended after step {state.global_step} of {state.max_steps}: {metric} was no better in the last "
            f"{self.early_stopping_patience_counter} validations (evaluation.patience), the best is of step "
            f"{state.best_global_step}"
        )
