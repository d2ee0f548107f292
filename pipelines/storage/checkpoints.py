"""Checkpoints that are complete or invisible.

Each is written to `.incomplete/checkpoint-N`, gets a manifest of its files (size and sha256), and is then renamed.
Before a run resumes, it checks the manifest; a damaged checkpoint becomes `corrupt-checkpoint-N`, an older one is used.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..manifest import MANIFEST, entries_of, sha256
from .atomic import share_files, sync_file, write_atomically

STAGING = ".incomplete"  # folder of a run, in which checkpoints and the final model are written
RUN_FILE = "anyformer_run.json"  # identity of the run, in each checkpoint


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def commit(staged: Path, final: Path) -> None:
    """Write the manifest of a staged checkpoint and make it visible under its final name."""
    files = _files(staged)
    share_files(files)
    entries = entries_of(staged, files)
    for file in files:
        sync_file(file)
    write_atomically(staged / MANIFEST, json.dumps(entries, indent=1))
    if final.exists():  # the same step again, of a run resumed from an earlier checkpoint
        shutil.rmtree(final)
    os.replace(staged, final)
    sync_file(final.parent)


def find_corruption(checkpoint: Path) -> str | None:
    """The first difference between a checkpoint and its manifest, in words; None for an intact checkpoint."""
    try:
        stored = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        entries = {name: (entry["size"], entry["sha256"]) for name, entry in stored.items()}
        missing = [name for name in entries if not os.path.isfile(checkpoint / name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"manifest cannot be read ({type(error).__name__})"
    if missing or not entries:
        return f"{missing[0]} is missing" if missing else "manifest names no file"
    return first_difference(checkpoint, entries, sha256)


def first_difference(folder: Path, entries: dict[str, tuple], checksum: Callable[[Path], Any]) -> str | None:
    """The first difference between files of a folder and their known {name: (bytes, checksum)}, in words."""
    for name, (size, _) in entries.items():
        actual = (folder / name).stat().st_size
        if actual != size:
            return f"{name} has {actual} bytes instead of {size}"
    for name, (_, known) in entries.items():
        if checksum(folder / name) != known:
            return f"{name} has changed since it was written"
    return None


def check_intact(checkpoints: list[Path], what: str, without: str) -> None:
    """Raise UserError for a damaged checkpoint. what: what it is. without: what the command does without it."""
    for checkpoint in checkpoints:
        problem = find_corruption(checkpoint)
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
        problem = find_corruption(checkpoint)
        if problem is None:
            return checkpoint
        aside = set_aside(checkpoint).name
        older = "looking for an earlier one" if list_checkpoints(folder) else "there is no earlier one, so from step 0"
        report(f"{checkpoint} is damaged ({problem}); set aside as {aside}, {older}")
    return None
