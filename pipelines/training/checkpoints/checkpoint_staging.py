"""Checkpoint staging: a checkpoint is written into a staging folder and gets its name when it is complete."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from ...errors import UserError
from ...storage.atomic import write_atomically
from ...storage.checkpoints import RUN_FILE, STAGING, commit, list_checkpoints, prune
from ...storage.full_disk import is_disk_full
from ...storage.model_folder import remove_supplied_code


class CheckpointStaging:
    """The folder of the checkpoint that is being written.

    Args:
        run_identity: text that is saved in each checkpoint.
        writes: whether this process writes checkpoints; the others only wait.

    `folder` is the staging folder while a checkpoint is written, None otherwise.
    """

    def __init__(self, run_identity: str, writes: bool):
        self.run_identity, self.writes, self.folder = run_identity, writes, None

    @contextmanager
    def stage(self, run_folder: Path, name: str) -> Iterator[Path]:
        """Yield the folder that checkpoint `name` is written into; where the block fails, the folder is deleted.

        Raises UserError where the block fails because the disk is full.
        """
        self.folder = run_folder / STAGING
        try:
            yield self.folder / name
        except Exception as error:
            full = is_disk_full(error, run_folder)  # asked before the deletion makes room
            if self.writes:
                shutil.rmtree(run_folder / STAGING, ignore_errors=True)
            if full:
                raise UserError(disk_full_sentence(run_folder, run_folder / name)) from error
            raise
        finally:
            self.folder = None

    @contextmanager
    def written_by(self, arguments) -> Iterator[None]:
        """A block in which Trainer, whose arguments these are, writes into the staging folder, and uploads nothing.

        The upload runs in the background, and has to read the final folder.
        """
        given = arguments.output_dir, arguments.push_to_hub
        arguments.output_dir, arguments.push_to_hub = str(self.folder), False
        try:
            yield
        finally:
            arguments.output_dir, arguments.push_to_hub = given

    def settle(self, staged: Path, state: TrainerState) -> None:
        """Write what only the training knows: the run's identity, and in Trainer's state the final path of a best
        checkpoint that has just been staged."""
        if not self.writes:
            return
        final = staged.parents[1] / staged.name
        if state.best_model_checkpoint == str(staged):
            state.best_model_checkpoint = str(final)
            state.save_to_json(str(staged / TRAINER_STATE_NAME))
        write_atomically(staged / RUN_FILE, self.run_identity)

    def commit(self, staged: Path, keep: int | None, best_step: int | None) -> None:
        """Make a complete staged checkpoint visible; delete all but the newest `keep` and that of the best step."""
        if not self.writes:
            return
        run_folder = staged.parents[1]
        remove_supplied_code(staged)
        commit(staged, run_folder / staged.name)
        prune(run_folder, keep=keep, best=find_checkpoint(run_folder, best_step))
        shutil.rmtree(staged.parent, ignore_errors=True)


class SaveTheBest(TrainerCallback):
    """A new best model is saved at once, whatever save_steps says."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        value = metrics.get(f"eval_{args.metric_for_best_model}")  # None: of the whole splits at the end
        if value is None:
            return
        best = state.best_metric
        if best is None or (value > best if args.greater_is_better else value < best):
            control.should_save = True


def disk_full_sentence(folder: Path, what: Path | str) -> str:
    """What a user reads when something did not fit into the run's folder."""
    complete = list_checkpoints(folder)
    good = f"the last complete checkpoint is {complete[0]}" if complete else "there is no earlier checkpoint"
    return f"the disk is full: {what} could not be written; {good}; free some space and run the same again"


def find_checkpoint(run_folder: str | Path, step: int | None) -> Path | None:
    """The checkpoint of a step, where it exists."""
    folder = Path(run_folder) / f"checkpoint-{step}"
    return folder if step and folder.is_dir() else None


def locate_best(state: TrainerState, run_folder: str | Path) -> bool:
    """Correct the path of the best checkpoint in `state`; False, with a line for the user, where it is gone.

    Its step is looked for, not the path in the state: a run's folder may have been moved.
    """
    best = find_checkpoint(run_folder, state.best_global_step)
    if best is None:
        print(f"anyformer: the best checkpoint (step {state.best_global_step}) is gone; the last model is kept")
        state.best_global_step = None
        return False
    state.best_model_checkpoint = str(best)
    return True
