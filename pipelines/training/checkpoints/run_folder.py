"""The folder of a run: the run's identity, whether it can be resumed, and whether it is finished."""

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ...adapters import ADAPTER_CONFIG
from ...errors import UserError
from ...manifest import MAY_CHANGE, check_saved_files, files_of_answers, is_any
from ...plugins import loaded_plugins
from ...recipes.differences import flat_settings, resume_difference
from ...recipes.global_batch import SETTINGS, same_step
from ...recipes.schema import MINIMAL_PAIRS, Recipe, TrainingSection
from ...reporting.run_log import COMPLETING
from ...storage.atomic import write_atomically
from ...storage.checkpoints import MANIFEST, RUN_FILE, find_last_complete, list_checkpoints, set_aside, step_of
from ...storage.folder_lock import FolderInUse, folder_lock
from ...storage.json_text import json_text
from ...storage.record import OF, Record, local_names, package_versions
from .extend_run import differs_in_length_alone, schedule_of, section_of, shared_steps


def say(sentence: str) -> None:
    """Print one line for the user to stderr, because programs may read stdout."""
    print(f"anyformer: {sentence}", file=sys.stderr)


def rows_asked_for(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings that may change when a run is resumed, and that decide which rows validations measure."""
    names = "evaluation_overlap", f"evaluation.{MINIMAL_PAIRS}", "evaluation.best_metric"  # pairs may be the metric
    return {path: value for path, value in flat_settings(recipe).items() if any(name in path for name in names)}


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


@dataclass
class RunFolder:
    """A recipe's output_dir, with the identity of the run that writes into it.

    data: sizes of the data, and a `fingerprint` that identifies it. total_steps: training section -> all steps of a run
    with this data and number of rows per step, None if unknown. rows_per_step: of all processes; None: not known yet.
    versions_by_step: if a run was resumed under other package versions, [{"from_step": 0, "torch": ...}, ...], the
    oldest first. read: the data's files, as data_identity gives them. wandb_id: of the run at Weights & Biases; a
    resumed run has that of its checkpoint.
    """

    recipe: Recipe
    data: dict
    total_steps: Callable[[TrainingSection], int | None] = lambda section: None
    rows_per_step: int | None = None
    versions_by_step: list[dict[str, Any]] = field(default_factory=list)
    read: dict[str, str | None] = field(default_factory=dict)
    wandb_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def path(self) -> Path:
        return Path(self.recipe.training.output_dir)

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
            **({"wandb_id": self.wandb_id} if "wandb" in self.recipe.training.report_to else {}),
        }

    def record(self) -> Record:
        """What the results of the finished run are of: the model in the folder, and the data, also of other splits."""
        return Record.of_run(self.path, self.read)

    def is_as_left(self, stored: dict) -> bool:
        """Whether a finished run's results are still those of its model and data; prints what is not.

        A model that somebody has saved in place of the run's is set aside. Raises UserError where no checkpoint is left
        by which the run could be completed again, and for files that were not saved with the model.
        """
        check_saved_files(self.path, "training.output_dir")
        changed = Record.of(stored).differs_from(self.record()) if OF in stored else None
        if changed is None:
            return True
        what = "model" if changed == "weights" else "data"
        if not list_checkpoints(self.path):
            raise UserError(
                f"training.output_dir={self.path}: the {what} of the finished run has been changed since, and no "
                f"checkpoint is left to complete it again from; anyformer evaluate measures the model as it is now"
            )
        if changed == "weights":
            aside = next(place for n in count(1) if not (place := self.path / f"replaced-{n}").exists())
            for file in files_of_answers(self.path):
                if not is_any(file.name, MAY_CHANGE):
                    (aside / file.relative_to(self.path)).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, aside / file.relative_to(self.path))
            what += f" (now in {aside.name})"
        say(f"{self.path}: the {what} is not that of the finished run any more; the run is completed again")
        return False

    def check_same_run(self, folder: Path, stored: dict) -> None:
        """Raise UserError if `folder` belongs to a run with another recipe or other data; a shorter run is allowed."""
        difference = None
        if not self.is_longer_than(stored):
            difference = resume_difference(self.recipe_of(stored), self.recipe.to_dict())
        if difference is None and stored["data"]["fingerprint"] != self.data["fingerprint"]:
            difference = (
                f"the data has changed (fingerprint {stored['data']['fingerprint'][:12]} there, "
                f"{self.data['fingerprint'][:12]} here)"
            )
        difference = difference or next(self.changed_files(stored), None)
        if difference is not None:
            raise UserError(
                f"training.output_dir={self.path} holds another run: {difference}; choose another output_dir "
                f"(model.name_or_path={folder} begins there from its weights), or delete {folder} to start over"
            )

    def changed_files(self, stored: dict) -> Iterator[str]:
        """Words for each of the other files that a stored run depends on, and that has changed since."""
        # Checkpoints hold neither the weights that a run began from nor its teacher's.
        for name, key in (("model", "base_weights"), ("teacher", "teacher_weights")):
            now = self.data.get(key)
            # A commit on the Hub may have changed the card alone: it counts only where the weights are read again.
            is_whole = name == "model" and self.recipe.training.lora is None and "@" in str(now)
            if now is not None and not is_whole and Record(stored["data"].get(key)).differs_from(Record(now)):
                where = getattr(self.recipe, name).name_or_path
                yield f"the weights of {name}.name_or_path={where!r} have changed since"
        asked = rows_asked_for(stored["recipe"]) == rows_asked_for(self.recipe.to_dict())
        if asked and stored["data"].get("validated_on") != self.data.get("validated_on"):
            yield "the data that validations measure has changed since"
        loaded = {plugin["plugin"]: plugin.get("sha256") for plugin in loaded_plugins()}
        for plugin in stored.get("plugins", []):
            if plugin.get("sha256") not in loaded.values():
                changed = "has changed since" if plugin["plugin"] in loaded else "is not loaded here (--plugin)"
                yield f"the plug-in {plugin['plugin']} {changed}"

    def rows_per_step_before(self) -> int | None:
        """The rows per step of the run to be resumed, if the recipe's settings of a step have not changed.

        None if there is no run to resume, or if these settings have changed.
        """
        for checkpoint in list_checkpoints(self.path):
            stored = read_identity(checkpoint / RUN_FILE)
            if stored is not None:
                same = same_step(section_of(stored["recipe"]), self.recipe.training)
                return stored.get("rows_per_step") if same else None
        return None

    def recipe_of(self, stored: dict) -> dict:
        """The recipe of a stored run, with this recipe's settings of a step if both have equally many rows per step."""
        recipe = stored["recipe"]
        if self.rows_per_step is None or stored.get("rows_per_step") != self.rows_per_step:
            return recipe
        settings = {name: getattr(self.recipe.training, name) for name in SETTINGS}
        return recipe | {"training": recipe["training"] | settings}

    def is_longer_than(self, stored: dict) -> bool:
        """Whether the stored run differs from this one only in length, and is shorter."""
        if not differs_in_length_alone(self.recipe_of(stored), self.recipe):
            return False
        stored_steps, steps = self.total_steps(section_of(stored["recipe"])), self.total_steps(self.recipe.training)
        return stored_steps is not None and steps is not None and stored_steps < steps

    def leave_shorter_runs_end(self, found: list[tuple[Path, dict]]) -> None:
        """Rename the checkpoints of a shorter run that come after its learning rates begin to differ from this run's.

        found: checkpoints and their identities, newest first. Raises UserError if none would be left.
        """
        if not found or not self.is_longer_than(found[0][1]):
            return
        old, new = schedule_of(found[0][1]["recipe"]), self.recipe
        old_steps, new_steps = self.total_steps(old.training), self.total_steps(new.training)
        shared = shared_steps(old, old_steps, new, new_steps)
        late = [checkpoint for checkpoint, _ in found if step_of(checkpoint) > shared]
        if len(late) == len(found):
            differing = "stages" if new.stages else f"learning rates ({old.training.lr_scheduler_type})"
            has_ended = (read_identity(self.path / "run.json") or {}).get("status") == "finished"
            way = "add --extend, which goes" if has_ended else "when it has ended, --extend goes"
            way += " on from there with a warm-up and decay of its own"
            if new.stages:
                way = "leave them as they are, with a learning_rate each, and add one by --extend"
                way += "" if has_ended else " when the run has ended"
            raise UserError(
                f"training.output_dir={self.path} holds a run of {old_steps:,} steps, whose {differing} are those of "
                f"{new_steps:,} steps up to step {shared:,} alone; {way}, or choose another output_dir"
            )
        for checkpoint in late:
            os.replace(checkpoint, self.path / f"decayed-{checkpoint.name}")  # list_checkpoints ignores this name
            say(f"{checkpoint} is of the shorter run's last steps; renamed to decayed-{checkpoint.name}")

    def checkpoint_to_resume(self) -> Path | None:
        """The newest complete checkpoint of this run, or None if there is none.

        Raises UserError if the folder holds checkpoints of another run, or training.resume is false.
        """
        folders = list_checkpoints(self.path)
        if not folders:
            return find_last_complete(self.path)
        if not self.recipe.training.resume:
            raise UserError(
                f"training.output_dir={self.path} already holds {folders[0].name}, and training.resume is false; "
                f"choose another output_dir"
            )
        if not any((checkpoint / RUN_FILE).is_file() or (checkpoint / MANIFEST).is_file() for checkpoint in folders):
            raise UserError(
                f"training.output_dir={self.path} holds {folders[0].name}, which anyformer did not write; "
                f"choose another output_dir"
            )
        readable = []
        for checkpoint in folders:
            stored = read_identity(checkpoint / RUN_FILE)
            if stored is None or not isinstance(stored.get("world_size"), int):
                continue  # damaged: find_last_complete sets it aside
            self.check_same_run(checkpoint, stored)
            readable.append((checkpoint, stored))
        self.leave_shorter_runs_end(readable)
        return find_last_complete(self.path, report=say)

    def go_on_from(self, checkpoint: Path) -> None:
        """Take the tracker's id from a checkpoint, and record the package versions of the steps up to it.

        Prints a line if other versions are installed now.
        """
        stored = read_identity(checkpoint / RUN_FILE) or {}
        self.wandb_id = stored.get("wandb_id", self.wandb_id)
        before, now, step = stored.get("versions") or {}, package_versions(), step_of(checkpoint)
        self.versions_by_step = stored.get("versions_by_step") or []
        changed = [name for name in now if before and before.get(name) != now[name]]
        if changed:
            first = self.versions_by_step or [{"from_step": 0} | before]
            self.versions_by_step = [*first, {"from_step": step} | now]
            changes = ", ".join(f"{name} {before.get(name, 'not installed')} -> {now[name]}" for name in changed)
            say(f"{checkpoint.name} was written under other versions ({changes}); run.json keeps both")

    def check_free(self) -> None:
        """Raise UserError if another run has finished here or left a checkpoint. Changes nothing."""
        stored = read_identity(self.path / "run.json")
        if stored is not None and (stored.get("status") in (COMPLETING, "finished") or list_checkpoints(self.path)):
            self.check_same_run(self.path, stored)

    def finished(self) -> dict | None:
        """The run.json of this run if it is finished; raises UserError if another run has finished here.

        If a run failed before its first checkpoint, another run may use its folder. A run.json that cannot be read is
        set aside, unless only it could say which run the folder's model is of.
        """
        path, checkpoints = self.path / "run.json", list_checkpoints(self.path)
        if not path.exists():
            return None
        stored = read_identity(path)
        if stored is None:
            if not checkpoints and any((self.path / name).exists() for name in ("config.json", ADAPTER_CONFIG)):
                raise UserError(
                    f"{path} cannot be read, and no checkpoint says which run the model in {self.path} is of; choose "
                    f"another output_dir"
                )
            say(f"{path} cannot be read; set aside as {set_aside(path).name}, the checkpoints say how far the run is")
            return None
        self.check_free()
        if stored.get("status") != "finished" or not self.is_as_left(stored):
            return None
        if not self.is_longer_than(stored):
            return stored
        if not checkpoints:
            raise UserError(
                f"training.output_dir={self.path} holds a finished run of fewer steps and none of its checkpoints to "
                f"go on from; choose another output_dir (model.name_or_path={self.path} begins there from its weights)"
            )
        return None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process during the block; it is created if it does not exist.

        Raises UserError if it cannot be written, or another process holds it.
        """
        was_there = self.path.exists()
        self.check_writable()
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

    def check_writable(self) -> None:
        """Create the folder; raise UserError if that, or writing into it, fails."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".write-test-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"training.output_dir={self.path} cannot be written ({error.strerror}); choose another folder"
            ) from error

    def write(self, status: str, **facts) -> None:
        """Write recipe.yaml, and run.json with the identity, the status and `facts`."""
        write_atomically(self.path / "recipe.yaml", self.recipe.to_yaml())
        run = self.identity() | {"status": status} | facts
        write_atomically(self.path / "run.json", json_text(run))

    def add(self, **facts) -> None:
        """Add entries to run.json."""
        path = self.path / "run.json"
        write_atomically(path, json_text(json.loads(path.read_text(encoding="utf-8")) | facts))
