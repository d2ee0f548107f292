"""Trackers (TensorBoard, Weights & Biases, Trackio): one run of the tracker for each run, up to its last metric.

transformers' callbacks end the tracker's run with training, before the metrics of the finished model; here `close`
ends it. It gets the recipe, the samples and the report, and is stored in the run's folder unless one of the tracker's
environment variables names another.
"""

import copy
import os
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

SPLITS = ("validation", "test")
COLUMNS = ("prompt", "text", "reference")  # of the table of samples


def filed(logs: dict) -> dict:
    """Logged numbers under names that trackers group: loss -> train/loss, validation_loss -> validation/loss."""
    names = {}
    for name in logs:
        split, _, rest = name.partition("_")
        names[name] = f"{split}/{rest}" if split in SPLITS else f"train/{name}"
    return {names[name]: value for name, value in logs.items() if isinstance(value, (int, float))}


class OneRun:
    """The base class before transformers' callback, so that `close` ends the tracker's run, and training does not."""

    begun = False
    ended, step = None, 0
    recipe: dict[str, Any] | None = None  # stored in the tracker's config
    run_id: str | None = None  # of a tracker that finds its run by an id; a resumed run has that of its checkpoint

    def on_train_begin(self, args, state, control, **kwargs):
        self.begun = True
        super().on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero and self.recipe is not None:
            self.configure({"recipe": self.recipe})

    def configure(self, facts: dict[str, Any]) -> None:
        """Add facts of the run to the tracker's config."""

    def show(self, samples: list[dict[str, str]], report: Path) -> None:
        """Send a finished run's samples and its report, an HTML page, to the tracker."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not self.begun:
            self.on_train_begin(args, state, control, **kwargs)
        self.step = state.global_step
        if state.is_world_process_zero and logs:
            self.send(filed(logs), state.global_step)

    def on_train_end(self, *args, **kwargs):
        self.ended = args, kwargs  # the metrics of the finished model come later

    def close(self) -> None:
        """End the tracker's run, even if training failed. Further calls do nothing."""
        begun, ended, self.begun, self.ended = self.begun, self.ended, False, None
        if ended is not None:
            args, kwargs = ended
            super().on_train_end(*args, **kwargs)
        if begun:
            self.finish()

    def finish(self) -> None:
        """Close what transformers' callback leaves open at the end of training, or when it fails."""


class TensorBoard(OneRun, TensorBoardCallback):
    """Events in output_dir/tensorboard (or $TENSORBOARD_LOGGING_DIR); a resumed run replaces those it logs again."""

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
    """Files in output_dir/wandb (or $WANDB_DIR/wandb); the id of its run is in run.json and in each checkpoint."""

    owns_run = False

    def setup(self, args, state, *others, **kwargs):
        self.owns_run = self._wandb.run is None  # otherwise the caller began it, and ends it
        if self.owns_run and state.is_world_process_zero:
            options = {"project": os.getenv("WANDB_PROJECT", "huggingface"), "name": args.run_name}
            options |= {} if "WANDB_DIR" in os.environ else {"dir": args.output_dir}
            options |= {"id": os.getenv("WANDB_RUN_ID", self.run_id), "resume": os.getenv("WANDB_RESUME", "allow")}
            self._wandb.init(**options)
        super().setup(args, state, *others, **kwargs)

    def configure(self, facts: dict[str, Any]) -> None:
        self._wandb.config.update(facts, allow_val_change=True)

    def show(self, samples: list[dict[str, str]], report: Path) -> None:
        shown = {}
        if samples:
            rows = [[sample.get(name, "") for name in COLUMNS] for sample in samples]
            shown["samples"] = self._wandb.Table(columns=list(COLUMNS), data=rows)
        if report.is_file():
            shown["report"] = self._wandb.Html(report.read_text(encoding="utf-8"), inject=False)
        self.send(shown, self.step)

    def finish(self) -> None:
        self._initialized = False
        if self.owns_run:
            self._wandb.finish()

    def send(self, numbers: dict, step: int) -> None:
        self._wandb.log(numbers | {"train/global_step": step})


class Trackio(OneRun, TrackioCallback):
    """A database in output_dir/trackio of a process's first run (or $TRACKIO_DIR, which trackio reads only once)."""

    def setup(self, args, *others, **kwargs):
        named = copy.copy(args)  # trackio finds a run by its name alone, and seeds of two trainings have the same names
        named.run_name = f"{args.run_name} {self.run_id}"
        super().setup(named, *others, **kwargs)

    def configure(self, facts: dict[str, Any]) -> None:
        self._trackio.config.update(facts, allow_val_change=True)

    def show(self, samples: list[dict[str, str]], report: Path) -> None:
        if samples:
            import pandas

            table = pandas.DataFrame([{name: sample.get(name, "") for name in COLUMNS} for sample in samples])
            self.send({"samples": self._trackio.Table(dataframe=table)}, self.step)
        if report.is_file():
            self._trackio.log_artifact(str(report), name="report", type="report")

    def finish(self) -> None:
        if self._initialized:  # training failed, so transformers' callback has not finished the run
            self._initialized = False
            self._trackio.finish()

    def send(self, numbers: dict, step: int) -> None:
        self._trackio.log(numbers | {"train/global_step": step})


OURS = {TensorBoardCallback: TensorBoard, WandbCallback: Wandb, TrackioCallback: Trackio}


def keep_in_run(output_dir: str) -> None:
    """Let trackio write into the run's folder; to be called before its import, when it reads its folder."""
    os.environ.setdefault("TRACKIO_DIR", os.path.join(os.path.abspath(output_dir), "trackio"))


def replace_trackers(trainer) -> list[OneRun]:
    """Replace a Trainer's tracker callbacks of transformers by ours; returns the new ones."""
    classes = [ours for theirs, ours in OURS.items() if trainer.pop_callback(theirs) is not None]
    trackers = [cls() for cls in classes]
    for tracker in trackers:
        trainer.add_callback(tracker)
    return trackers
