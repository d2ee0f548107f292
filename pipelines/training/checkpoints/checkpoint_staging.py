"""Checkpoint staging: a checkpoint is written into a staging folder, and moved to its place when it is complete."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from ...errors import UserError
from ...storage.atomic import is_disk_full, write_atomically
from ...storage.checkpoints import RUN_FILE, STAGING, commit, list_checkpoints, prune
from ...storage.model_folder import remove_supplied_code


class CheckpointStaging:
    """Stages and commits the checkpoints of a run.

    run_identity: text that is saved in each checkpoint.
    writes: whether this process writes checkpoints; the others only wait.
    """

    def __init__(self, run_identity: str, writes: bool):
        self.run_identity, self.writes = run_identity, writes

    @contextmanager
    def stage(self, arguments: TrainingArguments, name: str) -> Iterator[Path]:
        """Yield the folder that checkpoint `name` is written into; if the block fails, the folder is deleted.

        In the block Trainer, to which the arguments belong, writes there and uploads nothing: the upload runs in the
        background, and must read the final folder. Raises UserError if the block fails because the disk is full.
        """
        before = arguments.output_dir, arguments.push_to_hub
        run_folder = Path(arguments.output_dir)
        staged = run_folder / STAGING / name
        arguments.output_dir = str(staged.parent)
        arguments.push_to_hub = False
        try:
            yield staged
        except Exception as error:
            full = is_disk_full(error, run_folder)  # before the deletion frees space
            if self.writes:
                shutil.rmtree(staged.parent, ignore_errors=True)
            if full:
                raise UserError(disk_full_sentence(run_folder, run_folder / name)) from error
            raise
        finally:
            arguments.output_dir, arguments.push_to_hub = before

    def commit(self, staged: Path, state: TrainerState, keep: int | None) -> None:
        """Move a staged checkpoint to its place, with the run's identity; keep only the newest `keep` and the best.

        state: Trainer's; if the staged checkpoint is the best, its path in the state becomes the final one.
        """
        if not self.writes:
            return
        run_folder = staged.parents[1]
        if state.best_model_checkpoint == str(staged):
            state.best_model_checkpoint = str(run_folder / staged.name)
            state.save_to_json(str(staged / TRAINER_STATE_NAME))
        write_atomically(staged / RUN_FILE, self.run_identity)
        remove_supplied_code(staged)
        commit(staged, run_folder / staged.name)
        prune(run_folder, keep=keep, best=find_checkpoint(run_folder, state.best_global_step))
        shutil.rmtree(staged.parent, ignore_errors=True)


class SaveTheBest(TrainerCallback):
    """A new best model is saved at once, whatever save_steps says."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        value = metrics.get(f"eval_{args.metric_for_best_model}")  # None in the evaluation of whole splits at the end
        if value is None:
            return
        best = state.best_metric
        if best is None or (value > best if args.greater_is_better else value < best):
            control.should_save = True


def disk_full_sentence(folder: Path, what: Path | str) -> str:
    """The error message for something that did not fit into the run's folder."""
    complete = list_checkpoints(folder)
    good = f"the last complete checkpoint is {complete[0]}" if complete else "there is no earlier checkpoint"
    return f"the disk is full: {what} could not be written; {good}; free some space and run the same again"


def find_checkpoint(run_folder: str | Path, step: int | None) -> Path | None:
    """The checkpoint of a step, if it exists."""
    folder = Path(run_folder) / f"checkpoint-{step}"
    return folder if step and folder.is_dir() else None


def locate_best(state: TrainerState, run_folder: str | Path) -> bool:
    """Correct the path of the best checkpoint in `state`; return False, and print a line, if it is gone.

    It is found by its step, not by the path in the state, because the run's folder may have been moved.
    """
    best = find_checkpoint(run_folder, state.best_global_step)
    if best is None:
        print(f"anyformer: the best checkpoint (step {state.best_global_step}) is gone; the last model is kept")
        state.best_global_step = None
        return False
    state.best_model_checkpoint = str(best)
    return True
