"""Trackers (TensorBoard, Weights & Biases, Trackio): one run of the tracker for a run, up to its last metric.

transformers' callbacks end the tracker's run when training ends, so that the metrics of the finished model opened a
second one, and file every name but `eval_` and `test_` under `train/`. Here a run ends when `close` is called.
"""

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

SPLITS = ("validation", "test")


def filed(logs: dict) -> dict:
    """Logged numbers by the names that trackers group: loss -> train/loss, validation_loss -> validation/loss."""
    names = {}
    for name in logs:
        split, _, rest = name.partition("_")
        names[name] = f"{split}/{rest}" if split in SPLITS else f"train/{name}"
    return {names[name]: value for name, value in logs.items() if isinstance(value, (int, float))}


class OneRun:
    """What a callback of transformers needs beside itself, as the class before it: it overrides when a run ends."""

    begun = False
    ended = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.begun = True
        super().on_train_begin(args, state, control, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not self.begun:
            self.on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero and logs:
            self.send(filed(logs), state.global_step)

    def on_train_end(self, *args, **kwargs):
        self.ended = args, kwargs  # the metrics of the finished model come later

    def close(self) -> None:
        """End the tracker's run, also that of a training which failed; again: nothing happens."""
        begun, ended, self.begun, self.ended = self.begun, self.ended, False, None
        if ended is not None:
            args, kwargs = ended
            super().on_train_end(*args, **kwargs)
        if begun:
            self.finish()

    def finish(self) -> None:
        """What transformers' callback leaves open at the end, or when training fails."""


class TensorBoard(OneRun, TensorBoardCallback):
    """Events in output_dir/tensorboard (or $TENSORBOARD_LOGGING_DIR); a resumed run replaces what it does again."""

    def on_train_begin(self, args, state, control, **kwargs):
        if self.logging_dir is None:
            self.logging_dir = f"{args.output_dir}/tensorboard"
        if state.is_world_process_zero and self.tb_writer is None:
            self.tb_writer = self._SummaryWriter(log_dir=self.logging_dir, purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)

    def send(self, numbers: dict, step: int) -> None:
        for name, value in numbers.items():
            self.tb_writer.add_scalar(name, value, step)
        self.tb_writer.flush()

    def finish(self) -> None:
        if self.tb_writer is not None:
            self.tb_writer.close()
            self.tb_writer = None


class Wandb(OneRun, WandbCallback):
    owns_run = False

    def setup(self, *args, **kwargs):
        self.owns_run = self._wandb.run is None  # otherwise somebody has begun it, and ends it
        super().setup(*args, **kwargs)

    def finish(self) -> None:
        self._initialized = False
        if self.owns_run:
            self._wandb.finish()

    def send(self, numbers: dict, step: int) -> None:
        self._wandb.log(numbers | {"train/global_step": step})


class Trackio(OneRun, TrackioCallback):
    def finish(self) -> None:
        if self._initialized:  # training failed: its end would have finished the run
            self._initialized = False
            self._trackio.finish()

    def send(self, numbers: dict, step: int) -> None:
        self._trackio.log(numbers | {"train/global_step": step})


OURS = {TensorBoardCallback: TensorBoard, WandbCallback: Wandb, TrackioCallback: Trackio}


def replace_trackers(trainer) -> list[OneRun]:
    """Put ours in the place of transformers' callbacks that a Trainer has; returns them."""
    found = [ours for theirs, ours in OURS.items() if trainer.pop_callback(theirs) is not None]
    trackers = [cls() for cls in found]
    for tracker in trackers:
        trainer.add_callback(tracker)
    return trackers
