"""Checkpoint staging: a checkpoint is written into a staging folder and gets its name when it is complete."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError
from ..storage.checkpoints import STAGING, commit, list_checkpoints, prune
from .best_checkpoint import find_checkpoint


class CheckpointStaging:
    """Where the checkpoint that is being written lies.

    Args:
        writes: whether this process writes checkpoints; the others only wait.

    `folder` is the staging folder while a checkpoint is written, None otherwise.
    """

    def __init__(self, writes: bool):
        self.writes, self.folder = writes, None

    @contextmanager
    def stage(self, run_folder: Path, name: str) -> Iterator[Path]:
        """Yield the folder that checkpoint `name` is written into; what a failing block leaves there is deleted.

        Raises UserError where the block fails because the disk is full.
        """
        self.folder = run_folder / STAGING
        try:
            yield self.folder / name
        except Exception as error:
            full = is_disk_full(error, run_folder)  # asked before the deletion makes room
            if self.writes:
                shutil.rmtree(self.folder, ignore_errors=True)
            if full:
                raise UserError(disk_full_sentence(run_folder, name)) from error
            raise
        finally:
            self.folder = None

    def commit(self, staged: Path, keep: int | None, best: int | None) -> None:
        """Make a complete staged checkpoint visible; delete all but the newest `keep` and that of step `best`."""
        if not self.writes:
            return
        run_folder = staged.parents[1]
        commit(staged, run_folder / staged.name)
        prune(run_folder, keep=keep, best=find_checkpoint(run_folder, best))
        shutil.rmtree(staged.parent, ignore_errors=True)


def is_disk_full(error: BaseException | None, folder: Path) -> bool:
    """Whether an error while writing to `folder` came from a full disk.

    torch's and safetensors' writers do not always pass the OSError on, so the free space is checked, too.
    """
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return shutil.disk_usage(folder).free < 1 << 20


def disk_full_sentence(folder: Path, name: str) -> str:
    complete = list_checkpoints(folder)
    good = f"the last complete checkpoint is {complete[0]}" if complete else "there is no earlier checkpoint"
    return f"the disk is full: {folder / name} could not be written; {good}; free some space and run the same again"
