"""The epoch number, for training rows and samplers whose randomness depends on it."""

from transformers import TrainerCallback


class SetEpochCallback(TrainerCallback):
    """Calls `set_epoch` on data set and sampler: accelerate does not reach them in every arrangement of loaders.

    Args:
        dataset: training rows; those without a set_epoch are left alone.

    `sampler` may be set later, when the loader is made.
    """

    def __init__(self, dataset):
        self.dataset, self.sampler = dataset, None

    def on_epoch_begin(self, args, state, control, **kwargs):
        for listener in (self.dataset, self.sampler):
            if hasattr(listener, "set_epoch"):
                listener.set_epoch(int(state.epoch or 0))
