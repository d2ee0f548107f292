"""Checkpoints that are complete or invisible.

Each is written to `.incomplete/checkpoint-N`, gets a manifest of its files (size and sha256), and is then renamed.
Before a run resumes, it checks the manifest; a damaged checkpoint becomes `corrupt-checkpoint-N`, an older one is used.
"""

import os
import re
import shutil
from pathlib import Path

from ..errors import UserError
from ..manifest import MANIFEST, find_change, manifest_of
from .atomic import share_files, sync_file, write_atomically

STAGING = ".incomplete"  # folder of a run, in which checkpoints and the final model are written
RUN_FILE = "anyformer_run.json"  # identity of the run, in each checkpoint


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def commit(staged: Path, final: Path) -> None:
    """Write the manifest of a staged checkpoint and make it visible under its final name."""
    files = _files(staged)
    share_files(files)
    for file in files:
        sync_file(file)
    write_atomically(staged / MANIFEST, manifest_of(staged, files))
    if final.exists():  # the same step again, of a run resumed from an earlier checkpoint
        shutil.rmtree(final)
    os.replace(staged, final)
    sync_file(final.parent)


def check_intact(checkpoints: list[Path], what: str, without: str) -> None:
    """Raise UserError for a damaged checkpoint. what: what it is. without: what the command does without it."""
    for checkpoint in checkpoints:
        problem = find_change(checkpoint)
        if problem is not None:
            raise UserError(
                f"{checkpoint}, {what}, is damaged ({problem}) and was not used; put a good copy in its place, or "
                f"delete it: the same command then {without}"
            )


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, newest step first."""
    checkpoints = [p for p in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name) and p.is_dir()]
    return sorted(checkpoints, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


def prune(folder: Path, keep: int | None, best: str | Path | None = None) -> None:
    """Delete all but the newest `keep` checkpoints and the best one; keep=None deletes none.

    Each is first renamed into the staging folder: a run killed while deleting leaves no half checkpoint visible.
    """
    for checkpoint in list_checkpoints(folder)[keep:] if keep else []:
        if best is None or checkpoint.resolve() != Path(best).resolve():
            doomed = folder / STAGING / f"pruned-{checkpoint.name}"
            shutil.rmtree(doomed, ignore_errors=True)
            doomed.parent.mkdir(exist_ok=True)
            os.replace(checkpoint, doomed)
            shutil.rmtree(doomed)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to `corrupt-NAME`, in place of an older one of that name."""
    aside = path.with_name(f"corrupt-{path.name}")  # list_checkpoints does not match this name
    if aside.is_dir():
        shutil.rmtree(aside)
    os.replace(path, aside)
    return aside


def find_last_complete(folder: Path, report=print) -> Path | None:
    """The newest intact checkpoint; damaged ones are renamed and reported, unfinished ones removed."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    for checkpoint in list_checkpoints(folder):
        problem = find_change(checkpoint)
        if problem is None:
            return checkpoint
        aside = set_aside(checkpoint).name
        older = "looking for an earlier one" if list_checkpoints(folder) else "there is no earlier one, so from step 0"
        report(f"{checkpoint} is damaged ({problem}); set aside as {aside}, {older}")
    return None
