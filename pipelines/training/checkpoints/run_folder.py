"""The folder of a run: its identity, which it writes and reads, and the lock. resume.py decides who may write there."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...plugins import loaded_plugins
from ...recipes.schema import Recipe
from ...storage.atomic import write_atomically
from ...storage.checkpoints import RUN_FILE, list_checkpoints
from ...storage.folder_lock import FolderInUse, folder_lock
from ...storage.json_text import json_text
from ...storage.record import Record, local_names, package_versions
from ...words import say


def read_identity(path: Path) -> dict[str, Any] | None:
    """The identity of a run from run.json or a checkpoint's file; None if the file is missing or damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        readable = isinstance(stored["recipe"], dict) and isinstance(stored["data"]["fingerprint"], str)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return stored if readable else None


def stored_run(folder: Path) -> dict[str, Any] | None:
    """The identity of the run in a folder: from its newest readable checkpoint, or run.json if it is finished."""
    for file in [*(checkpoint / RUN_FILE for checkpoint in list_checkpoints(folder)), folder / "run.json"]:
        stored = read_identity(file)
        if stored is not None and (file.name != "run.json" or stored.get("status") == "finished"):
            return stored
    return None


def processes_of(checkpoint: Path) -> int | None:
    """The number of processes that wrote a checkpoint; None where it does not say."""
    return (read_identity(checkpoint / RUN_FILE) or {}).get("world_size")


@dataclass
class RunFolder:
    """A recipe's output_dir, with the identity of the run that writes into it.

    data: sizes of the data, and a `fingerprint` that identifies it. versions_by_step: if a run was resumed under other
    package versions, [{"from_step": 0, "torch": ...}, ...], the oldest first. read: the data's files, as data_identity
    gives them. tracker_id: of the run at Weights & Biases or Trackio; a resumed run has that of its checkpoint.
    """

    recipe: Recipe
    data: dict
    versions_by_step: list[dict[str, Any]] = field(default_factory=list)
    read: dict[str, str | None] = field(default_factory=dict)
    tracker_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def path(self) -> Path:
        return Path(self.recipe.training.output_dir)

    @property
    def is_tracked(self) -> bool:
        """Whether a tracker finds its run by an id."""
        return any(name in self.recipe.training.report_to for name in ("wandb", "trackio"))

    def identity(self) -> dict:
        """The identity that is saved in run.json and in each checkpoint, and compared before a run is resumed."""
        return {
            "recipe": self.recipe.to_dict(),
            "seed": self.recipe.training.seed,
            "versions": package_versions(),
            "data": self.data,
            "local": local_names(self.recipe.to_dict()),
            **({"versions_by_step": self.versions_by_step} if self.versions_by_step else {}),
            **({"plugins": loaded_plugins()} if loaded_plugins() else {}),
            **({"chosen": self.recipe.chosen} if self.recipe.chosen else {}),
            **({"tracker_id": self.tracker_id} if self.is_tracked else {}),
        }

    def record(self) -> Record:
        """What the results of the finished run are of: the model in the folder, and the data, also of other splits."""
        return Record.of_run(self.path, self.read)

    def go_on_from(self, step: int, stored: dict[str, Any]) -> None:
        """Take the tracker's id from a checkpoint's identity, and record the package versions of the steps up to it.

        Prints a line if other versions are installed now.
        """
        self.tracker_id = stored.get("tracker_id", self.tracker_id)
        self.versions_by_step = stored.get("versions_by_step") or []
        before = stored.get("versions") or {}
        now = package_versions()
        changed = [name for name in now if before and before.get(name) != now[name]]
        if changed:
            first = self.versions_by_step or [{"from_step": 0} | before]
            self.versions_by_step = [*first, {"from_step": step} | now]
            changes = ", ".join(f"{name} {before.get(name, 'not installed')} -> {now[name]}" for name in changed)
            say(f"checkpoint-{step} was written under other versions ({changes}); run.json keeps both")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process during the block; it is created if it does not exist.

        Raises UserError if it cannot be written, or another process holds it.
        """
        was_there = self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".write-test-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"training.output_dir={self.path} cannot be written ({error.strerror}); choose another folder"
            ) from error
        try:
            with folder_lock(self.path):
                yield
        except FolderInUse as holder:
            raise UserError(
                f"training.output_dir={self.path} is in use by {holder}; stop that run or wait for its end, or choose "
                f"another output_dir"
            ) from None
        finally:
            if not was_there:
                with suppress(OSError):  # not empty: the run has begun
                    self.path.rmdir()

    def write(self, status: str, **facts) -> None:
        """Write recipe.yaml, and run.json with the identity, the status and `facts`."""
        write_atomically(self.path / "recipe.yaml", self.recipe.to_yaml())
        run = self.identity() | {"status": status} | facts
        write_atomically(self.path / "run.json", json_text(run))

    def add(self, **facts) -> None:
        """Add entries to run.json."""
        path = self.path / "run.json"
        write_atomically(path, json_text(json.loads(path.read_text(encoding="utf-8")) | facts))
