"""May this run go on? `Resume.verdict` decides it from recipe, data, code and checkpoints; nobody else does.

The file reads in the order of the decision: the verdict; is it the same run (settings, by same_run.py, data, other
files, code); is it the same run but longer; can this engine read the checkpoint; what a resumed run takes from its
recipe instead of its checkpoint; and `--extend`, which makes a longer run of a finished one.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from ...adapters import ADAPTER_CONFIG
from ...errors import UserError
from ...manifest import MAY_CHANGE, check_saved_files, files_of_answers, is_any
from ...plugins import loaded_plugins
from ...recipes.checks import check_recipe
from ...recipes.global_batch import SETTINGS
from ...recipes.parallelism import MESH
from ...recipes.schema import Recipe, StageSection, TrainingSection
from ...recipes.stage_plan import rates_of, stages_of
from ...reporting.run_log import COMPLETING
from ...storage.checkpoints import MANIFEST, RUN_FILE, find_last_complete, list_checkpoints, set_aside, step_of
from ...storage.record import OF, Record
from ...words import counted, say
from ..engines.engine import Engine
from ..engines.mesh import OPTIMIZER_FOLDER
from ..learning_rate import replace_shares
from . import same_run
from .run_folder import RunFolder, processes_of, read_identity
from .safe_load import find_foreign


@dataclass(frozen=True)
class Verdict:
    """What the command does with a run's folder.

    kind: "fresh": the run begins; "goes on": from `checkpoint`; "again": so, too, because the finished run's results
    are no longer of the model or data there; "finished": there is nothing to do. A run that may not go on is refused
    by a UserError, which says why. identity: the checkpoint's, or run.json of a finished run.
    """

    kind: Literal["fresh", "goes on", "again", "finished"]
    checkpoint: Path | None = None
    identity: dict[str, Any] = field(default_factory=dict)


@dataclass
class Resume:
    """The question whether a run may go on in its folder.

    folder: with the recipe and the data of the run that is to be trained now. engine, processes: what trains it.
    rows_per_step: of all processes. total_steps: training section -> all steps of a run with this data and
    rows_per_step, None if unknown.
    """

    folder: RunFolder
    engine: Engine
    processes: int = 1
    rows_per_step: int | None = None
    total_steps: Callable[[TrainingSection], int | None] = lambda section: None

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def recipe(self) -> Recipe:
        return self.folder.recipe

    def verdict(self) -> Verdict:
        """What the command does. Damaged and outdated files are set aside, each with a printed line.

        Raises UserError, which says why, for a run that may not go on.
        """
        stored = self._run_of_folder()
        self.check_free()
        kind: Literal["goes on", "again"] = "goes on"
        if stored is not None and stored.get("status") == "finished":
            if not self._is_as_left(stored):
                kind = "again"
            elif not self.is_longer_than(stored):
                return Verdict("finished", identity=stored)
            elif not list_checkpoints(self.path):
                raise UserError(
                    f"training.output_dir={self.path} holds a finished run of fewer steps and none of its checkpoints "
                    f"to go on from; choose another output_dir (model.name_or_path={self.path} begins there from its "
                    f"weights)"
                )
        self._check_checkpoints()
        checkpoint = find_last_complete(self.path, report=say)
        if checkpoint is None:
            return Verdict("fresh")
        check_engine(checkpoint, self.engine, self.processes, self.recipe.trust_remote_code)
        return Verdict(kind, checkpoint, read_identity(checkpoint / RUN_FILE) or {})

    def check_free(self) -> None:
        """Raise UserError if another run has finished here or left a checkpoint. Changes nothing.

        If a run failed before its first checkpoint, another run may use its folder.
        """
        stored = read_identity(self.path / "run.json")
        if stored is not None and (stored.get("status") in (COMPLETING, "finished") or list_checkpoints(self.path)):
            self._check_same_run(self.path, stored)

    def _run_of_folder(self) -> dict | None:
        """The folder's run.json; one that cannot be read is set aside, unless only it says of which run the model is.

        Raises UserError for such a one.
        """
        path = self.path / "run.json"
        stored = read_identity(path)
        if stored is not None or not path.exists():
            return stored
        has_model = any((self.path / name).exists() for name in ("config.json", ADAPTER_CONFIG))
        if has_model and not list_checkpoints(self.path):
            raise UserError(f"{path} is damaged, and no checkpoint says whose the model is; choose another output_dir")
        say(f"{path} cannot be read; set aside as {set_aside(path).name}, the checkpoints say how far the run is")
        return None

    def _is_as_left(self, stored: dict) -> bool:
        """Whether a finished run's results are still those of its model and data; prints what is not.

        A model that somebody has saved in place of the run's is set aside. Raises UserError where no checkpoint is left
        by which the run could be completed again, and for files that were not saved with the model.
        """
        check_saved_files(self.path, "training.output_dir")
        changed = Record.of(stored).differs_from(self.folder.record()) if OF in stored else None
        if changed is None:
            return True
        what = "model" if changed == "weights" else "data"
        if not list_checkpoints(self.path):
            raise UserError(
                f"training.output_dir={self.path}: the {what} of the finished run has been changed since, and no "
                f"checkpoint is left to complete it again from; anyformer evaluate measures the model as it is now"
            )
        if changed == "weights":
            number = 1
            while (self.path / f"replaced-{number}").exists():
                number += 1
            aside = self.path / f"replaced-{number}"
            for file in files_of_answers(self.path):
                if not is_any(file.name, MAY_CHANGE):
                    place = aside / file.relative_to(self.path)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, place)
            what += f" (now in {aside.name})"
        say(f"{self.path}: the {what} is not that of the finished run any more; the run is completed again")
        return False

    def _check_checkpoints(self) -> None:
        """Raise UserError for checkpoints of another run, or of none, and where training.resume is false.

        Of a shorter run, those after its learning rates begin to differ from this run's are renamed.
        """
        folders = list_checkpoints(self.path)
        holds = f"training.output_dir={self.path} holds {folders[0].name if folders else ''}"
        if folders and not self.recipe.training.resume:
            raise UserError(f"{holds}, and training.resume is false; choose another output_dir")
        if folders and not any((folder / name).is_file() for folder in folders for name in (RUN_FILE, MANIFEST)):
            raise UserError(f"{holds}, which anyformer did not write; choose another output_dir")
        found = []
        for checkpoint in folders:
            stored = read_identity(checkpoint / RUN_FILE)
            if stored is None or not isinstance(stored.get("world_size"), int):
                continue  # damaged: find_last_complete sets it aside
            self._check_same_run(checkpoint, stored)
            found.append((checkpoint, stored))
        if found and self.is_longer_than(found[0][1]):
            self._leave_shorter_runs_end([checkpoint for checkpoint, _ in found], found[0][1])

    # ---------------------------------------------------------------------------------------- the same run

    def _check_same_run(self, where: Path, stored: dict) -> None:
        """Raise UserError if `where` belongs to a run with another recipe or other data; a shorter run is allowed."""
        difference = next(self._differences(stored), None)
        if difference is not None:
            raise UserError(
                f"training.output_dir={self.path} holds another run: {difference}; choose another output_dir "
                f"(model.name_or_path={where} begins there from its weights), or delete {where} to start over"
            )

    def _differences(self, stored: dict) -> Iterator[str]:
        """Words for each setting but the length, and each file that a run depends on, in which a stored run differs."""
        settings = same_run.resume_difference(self._recipe_of(stored), self.recipe.to_dict())
        if settings is not None and not self.is_longer_than(stored):
            yield settings
        before = stored["data"]
        now = self.folder.data
        if before["fingerprint"] != now["fingerprint"]:
            there, here = before["fingerprint"][:12], now["fingerprint"][:12]
            yield f"the data has changed (fingerprint {there} there, {here} here)"
        # Checkpoints hold neither the weights that a run began from nor its teacher's.
        for name, key in (("model", "base_weights"), ("teacher", "teacher_weights")):
            weights = now.get(key)
            # A commit on the Hub may have changed the card alone: it counts only where the weights are read again.
            is_whole = name == "model" and self.recipe.training.lora is None and "@" in str(weights)
            if weights is not None and not is_whole and Record(before.get(key)).differs_from(Record(weights)):
                where = getattr(self.recipe, name).name_or_path
                yield f"the weights of {name}.name_or_path={where!r} have changed since"
        asked = same_run.rows_asked_for(stored["recipe"]) == same_run.rows_asked_for(self.recipe.to_dict())
        if asked and before.get("validated_on") != now.get("validated_on"):
            yield "the data that validations measure has changed since"
        loaded = {plugin["plugin"]: plugin.get("sha256") for plugin in loaded_plugins()}
        for plugin in stored.get("plugins", []):
            if plugin.get("sha256") not in loaded.values():
                changed = "has changed since" if plugin["plugin"] in loaded else "is not loaded here (--plugin)"
                yield f"the plug-in {plugin['plugin']} {changed}"

    def _recipe_of(self, stored: dict) -> dict:
        """The recipe of a stored run, with this recipe's settings of a step if both have equally many rows per step."""
        recipe = stored["recipe"]
        if self.rows_per_step is None or stored.get("rows_per_step") != self.rows_per_step:
            return recipe
        settings = {name: getattr(self.recipe.training, name) for name in SETTINGS}
        return recipe | {"training": recipe["training"] | settings}

    # ---------------------------------------------------------------------------------------- a longer run

    def is_longer_than(self, stored: dict) -> bool:
        """Whether the stored run differs from this one only in length, and is shorter."""
        differing = {path for path, _, _ in same_run.resume_differences(self._recipe_of(stored), self.recipe.to_dict())}
        if not differing or not all(path in same_run.LENGTH or path.startswith("stages.") for path in differing):
            return False
        before = self.total_steps(same_run.section_of(stored["recipe"]))
        now = self.total_steps(self.recipe.training)
        return before is not None and now is not None and before < now

    def _leave_shorter_runs_end(self, checkpoints: list[Path], stored: dict) -> None:
        """Rename a shorter run's checkpoints that come after its learning rates begin to differ from this run's.

        Raises UserError if none would be left.
        """
        old = same_run.schedule_of(stored["recipe"])
        new = self.recipe
        old_steps = self.total_steps(old.training)
        new_steps = self.total_steps(new.training)
        shared = same_run.shared_steps(old, old_steps, new, new_steps)
        late = [checkpoint for checkpoint in checkpoints if step_of(checkpoint) > shared]
        if len(late) == len(checkpoints):
            differing = "stages" if new.stages else f"learning rates ({old.training.lr_scheduler_type})"
            raise UserError(
                f"training.output_dir={self.path} holds a run of {old_steps:,} steps, whose {differing} are those of "
                f"{new_steps:,} steps up to step {shared:,} alone; {self._way_on()}, or choose another output_dir"
            )
        for checkpoint in late:
            os.replace(checkpoint, self.path / f"decayed-{checkpoint.name}")  # list_checkpoints ignores this name
            say(f"{checkpoint} is of the shorter run's last steps; renamed to decayed-{checkpoint.name}")

    def _way_on(self) -> str:
        """How a run whose schedule has ended can get more steps."""
        has_ended = (read_identity(self.path / "run.json") or {}).get("status") == "finished"
        if self.recipe.stages:
            when = "" if has_ended else " when the run has ended"
            return f"leave them as they are, with a learning_rate each, and add one by --extend{when}"
        way = "add --extend, which goes" if has_ended else "when it has ended, --extend goes"
        return f"{way} on from there with a warm-up and decay of its own"


def rows_per_step_before(recipe: Recipe) -> int | None:
    """The rows per step of the run to be resumed, if the recipe's settings of a step have not changed; else None."""
    for checkpoint in list_checkpoints(Path(recipe.training.output_dir)):
        stored = read_identity(checkpoint / RUN_FILE)
        if stored is not None:
            before = stored["recipe"]["training"]
            same = all(before[name] == getattr(recipe.training, name) for name in SETTINGS)
            return stored.get("rows_per_step") if same else None
    return None


# ------------------------------------------------------------------------------------- checkpoints of an engine


def check_engine(checkpoint: Path, engine: Engine, processes: int, trusted: bool) -> None:
    """Raise UserError for a checkpoint whose states the engine cannot read, or must not.

    trusted: whether its files may hold more than plain data.
    """
    writer = saved_under(checkpoint)
    reader = "plain" if engine.whole else engine.name
    if writer != reader:
        ways = {kind.name: kind.launched_by for kind in Engine.__subclasses__()}
        launch = "without DeepSpeed and a mesh" if writer == "plain" else f"by --launch {ways[writer]}"
        raise UserError(
            f"{checkpoint} holds the states of a run {'without an engine' if writer == 'plain' else 'under ' + writer}"
            f", which {engine.name or 'one process'} cannot read; go on {launch}, or begin from its weights "
            f"in another output_dir, by model.name_or_path={checkpoint}"
        )
    if engine.parallelism is not None and engine.parallelism.sp > 1:
        raise UserError(
            f"{checkpoint} is of a run with sp, whose loader cannot begin in the middle of the rows; begin from its "
            f"weights in another output_dir, by model.name_or_path={checkpoint}"
        )
    # The hashes of its files have been verified by its manifest before.
    foreign = find_foreign(checkpoint) if engine.reads_pickles and not trusted else None
    if foreign is not None:
        raise UserError(
            f"{checkpoint}: {foreign}, and resuming under DeepSpeed or a mesh runs whatever code its files hold; if "
            f"you trust them, make a copy of your own and resume that, or add --trust-remote-code"
        )
    # elastic.py converts shards of ZeRO-1 and ZeRO-2; of ZeRO-3 it would lose a part (losses differ by 1e-3).
    before = processes_of(checkpoint)
    if before != processes and any(checkpoint.glob("global_step*/zero_pp_rank_*_model_states.pt")):
        raise UserError(
            f"{checkpoint} was written under ZeRO-3 by {counted(before, 'process', 'processes')}, and its shares "
            f"cannot be given to {processes}; start {before}, or begin from its weights in another output_dir, by "
            f"model.name_or_path={checkpoint}"
        )


def saved_under(checkpoint: Path) -> str:
    """Which engine wrote a checkpoint: "DeepSpeed", "mesh", or "plain" for one process or DDP."""
    if (checkpoint / OPTIMIZER_FOLDER).is_dir():
        return MESH
    return "DeepSpeed" if any(checkpoint.glob("global_step*")) else "plain"


# ------------------------------------------------------------------------------- settings that a resumed run changes

# Trainer's messages about a resumed run that do not apply here: the best checkpoint is found by its step, and the
# settings of the new command replace the stored ones.
SAID_BY_TRAINER = ("The best checkpoint", "Warning: The following arguments do not match")


class ResumedSettings(TrainerCallback):
    """Replaces settings that Trainer has read from the checkpoint by those of the resumed run's recipe.

    These are the steps between two logs, validations and checkpoints, and the learning rate of the next step, which a
    longer run may change. The best metric so far is dropped if another metric, or one of other rows, now chooses the
    best model. run_identity: JSON text with the resumed run's recipe.
    """

    stored: dict[str, Any] | None = None  # the recipe of the checkpoint

    def __init__(self, run_identity: str):
        self.recipe = json.loads(run_identity).get("recipe", {})

    def begin(self, checkpoint: str | Path | None) -> None:
        """Called when training begins; reads the recipe of a resumed run's checkpoint."""
        identity = None if checkpoint is None else read_identity(Path(checkpoint) / RUN_FILE)
        self.stored = None if identity is None else identity["recipe"]

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        state.compute_steps(args, state.max_steps)
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # accelerate may have wrapped it
        if isinstance(scheduler, LambdaLR):
            replace_shares(scheduler, scheduler.lr_lambdas)
        before = (self.stored or {}).get("evaluation", {})
        now = self.recipe.get("evaluation", {}) | {"best_metric": args.metric_for_best_model}
        names = same_run.of_best_metric(now["best_metric"])
        if any(before.get(name, now.get(name)) != now.get(name) for name in names):
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None


# ----------------------------------------------------------------------------------------------------- --extend


def extend(recipe: Recipe) -> Recipe:
    """The recipe with a new warm-up and decay, or a new stage, that begins where the finished run in output_dir ended.

    If the run has been extended by the same command before, the recipe has the same restarts or stages again, so that
    the command resumes it. Raises UserError if there is no finished run, it ended early, or the recipe has no more
    steps.
    """
    setting = f"training.output_dir={recipe.training.output_dir}"
    run = read_identity(Path(recipe.training.output_dir) / "run.json")
    if run is None:
        raise UserError(f"{setting} holds no run to extend; train it first, without --extend")
    stored = run["recipe"]
    steps = run.get("steps")
    restarts = same_run.section_of(stored).restarts
    again = recipe.with_(training={"restarts": restarts})
    extended = again.to_dict()
    # Whether a step has as many rows, divided otherwise, is checked when the run goes on.
    same = stored | {"training": stored["training"] | {name: extended["training"][name] for name in SETTINGS}}
    if restarts and same_run.resume_difference(same, extended) is None:
        return again
    old = same_run.schedule_of(stored)
    if 0 < len(recipe.stages) <= len(old.stages) and old.training.max_steps == recipe.training.max_steps:
        return recipe.with_(stages=_trained_so_far(recipe, old, [section.until for section in old.stages]))
    if run.get("status") != "finished":
        raise UserError(f"{setting}: the run there is not finished; let the same command without --extend go on first")
    if "ended_early" in run:
        raise UserError(f"{setting}: {run['ended_early']}; begin another run from it, by model.name_or_path")
    most = recipe.training.max_steps
    if most > 0 and most <= steps:
        raise UserError(f"training.max_steps={most} is no more than the {steps:,} steps of the run in {setting}")
    if not recipe.stages:
        return recipe.with_(training={"restarts": [*restarts, steps]})
    ends = [float(stage.end) if stage.end > 1 else 1 / most for stage in stages_of(old)]  # 1.0 would be all steps
    trained = _trained_so_far(recipe, old, ends)
    recipe = recipe.with_(stages=[*trained, *(recipe.stages[len(trained) :] or [_last_again(old)])])
    check_recipe(recipe)
    return recipe


def _trained_so_far(recipe: Recipe, old: Recipe, ends: list[float]) -> list[StageSection]:
    """The stages of the recipe, followed by those by which the run was extended, with the ends `ends`."""
    sections = [*recipe.stages, *old.stages[len(recipe.stages) :]]
    return [replace(section, until=end) for section, end in zip(sections, ends)]


def _last_again(old: Recipe) -> StageSection:
    """A copy of a run's last stage to follow it; if the learning rate has decayed, it begins with a warm-up."""
    section = replace(old.stages[-1], until=1.0)
    if section.learning_rate is None:
        return section
    *_, (_, rates) = rates_of(old)
    return replace(section, peak=rates.peak, warmup_steps=0.0 if rates.end == rates.peak else old.training.warmup_steps)
