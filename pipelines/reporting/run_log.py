"""The facts in the folder of a run, finished, running or killed: settings, curves, metrics, progress."""

import json
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..manifest import read_json
from ..recipes.own_settings import flat_settings
from ..recipes.schema import Recipe
from ..storage.checkpoints import list_checkpoints, step_of
from ..storage.record import Record, data_identity, of_its_model
from ..words import counted

RUN_FILE = "run.json"
# A line of JSON for everything that was logged.
METRICS_FILE, ROUTER_FILE, GRADIENTS_FILE = "metrics.jsonl", "router.jsonl", "gradients.jsonl"
COMPLETING = "completing"  # the status in run.json when the model is saved, and the card or this page are still missing
CLASSES_FILE = "classes.json"  # the scores of single classes, for each split
ROWS_FILE = "rows.json"  # rows of the training data, shown for people
COLUMNS_FILE = "columns.json"  # what a sweep has measured of the finished run, beside its metrics
BY_POSITION_FILE = "by-position.json"  # its perplexities by position, which a sweep has measured


@dataclass
class RunLog:
    """A run, read from its folder alone.

    run: the contents of run.json, without results of another model than the folder's. entries, routers,
    gradients: the lines of metrics.jsonl, router.jsonl and gradients.jsonl. damaged: sentences about files that cannot
    be read whole, or are of another model. model: the record of the folder's.
    """

    folder: Path
    run: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    routers: list[dict[str, Any]] = field(default_factory=list)
    gradients: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    model: Record = field(default_factory=Record)

    @property
    def name(self) -> str:
        return ends_of([self.folder])[0]

    @property
    def recipe(self) -> dict[str, Any]:
        """The composed recipe as plain data."""
        return self.run["recipe"]

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, and its model is saved."""
        return self.run.get("status") in (COMPLETING, "finished")

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, empty if the recipe has none of this name."""
        return self.recipe.get(name) or {}

    # ---- curves

    @cached_property
    def train(self) -> list[dict[str, Any]]:
        """The lines of the training itself: loss, learning rate and whatever is logged with them."""
        return [line for line in self.entries if "loss" in line and "learning_rate" in line]

    @cached_property
    def validations(self) -> list[dict[str, Any]]:
        """The lines of the validations during training, without the last measurement, which follows its end."""
        last = self.train[-1]["step"] if self.train else 0
        ends = [number for number, line in enumerate(self.entries) if "train_runtime" in line and line["step"] >= last]
        lines = self.entries[: ends[-1]] if ends else self.entries
        of_steps = {line["step"]: line for line in lines if "validation_loss" in line}
        return list(of_steps.values())

    @cached_property
    def axes(self) -> dict[str, list[float]]:
        """{"step", "tokens", "seconds"} of each line of the training, from its beginning.

        The logged tokens begin at 0 again when a run is resumed; the time between its processes does not count.
        """
        columns: dict[str, list[float]] = {"step": [], "tokens": [], "seconds": []}
        tokens = seconds = before = clock = 0.0
        for line in self.train:
            counted = line.get("tokens", 0)
            is_begun_anew = counted < before or not columns["step"]
            new = counted if is_begun_anew else counted - before
            at_work = new / line["tokens_per_second"] if line.get("tokens_per_second") else 0.0
            seconds += at_work if is_begun_anew else max(at_work, line.get("time", clock) - clock)
            tokens, before, clock = tokens + new, counted, line.get("time", clock)
            for name, value in (("step", line["step"]), ("tokens", tokens), ("seconds", seconds)):
                columns[name].append(value)
        return columns

    # ---- how far it is

    @property
    def steps(self) -> int:
        """The last known step."""
        candidates = [self.run.get("steps") or 0, *(line["step"] for line in self.entries[-1:])]
        return max(candidates + [step_of(checkpoint) for checkpoint in list_checkpoints(self.folder)[:1]])

    @property
    def total_steps(self) -> int | None:
        """The number of steps of the whole run; None if the folder does not say it."""
        return self.run.get("steps" if self.is_finished else "total_steps")

    @property
    def seconds(self) -> float | None:
        """Of all training lines and the evaluations between them, or of the last command where that is more."""
        trained = self.axes["seconds"][-1] if self.train else None
        return max(trained or 0, self.run.get("wall_seconds") or 0) or None

    @property
    def tokens(self) -> int | None:
        return int(self.axes["tokens"][-1]) if self.train and self.axes["tokens"][-1] else None

    @property
    def progress(self) -> str:
        """How far the run has got, in a sentence."""
        if self.is_finished:
            return f"finished after {counted(self.steps, 'step')}"
        total, step = self.total_steps, self.steps
        share = f" of {total:,} ({step / total:.0%})" if total else ""
        if not self.entries and not step:
            return "begun, and nothing measured yet" + (f"; {counted(total, 'step')} to make" if total else "")
        at = self.entries[-1].get("time") if self.entries else None
        when = f", last heard of on {time.strftime('%Y-%m-%d at %H:%M:%S', time.localtime(at))}" if at else ""
        return f"not finished: step {step:,}{share}{when}; this page shows what there is until then"

    # ---- what it has come to

    @property
    def metrics(self) -> dict[str, float]:
        """{"test_accuracy": ...} of the finished model; for an unfinished run, those of the last validation."""
        if self.is_finished:
            return {name: value for name, value in self.run.get("metrics", {}).items() if is_number(value)}
        last = self.validations[-1] if self.validations else {}
        return {name: value for name, value in last.items() if is_metric(name) and is_number(value)}

    @cached_property
    def columns(self) -> dict[str, dict[str, Any]]:
        """{name: {"value": number, "of": {"code"}}} that a sweep has measured of the finished run, beside its metrics.

        code: by which it was measured, where that makes a difference.
        """
        columns = _object(self.folder / COLUMNS_FILE, self.damaged, self.model)
        return {name: column for name, column in columns.items() if isinstance(column, dict) and "value" in column}

    @cached_property
    def by_position(self) -> dict[str, Any]:
        """What `anyformer evaluate --by-position` has written for a sweep: "tokens_before" and "perplexity".

        Empty if it is of other data, too: runs are compared by it.
        """
        if not (self.folder / BY_POSITION_FILE).is_file():
            return {}
        now = replace(self.model, data=data_identity(self.recipe))
        return _object(self.folder / BY_POSITION_FILE, self.damaged, now)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its path, with defaults for those that the saved recipe does not have."""
        return flat_settings(Recipe().to_dict()) | flat_settings(self.recipe)


NOT_METRICS = ("nll", "predictions", "runtime", "samples_per_second", "steps_per_second")


def ends_of(folders: list[Path]) -> list[str]:
    """Short names that tell folders apart: the ends of their paths. `seed-1` stands alone only beside other seeds."""
    paths = [folder.resolve() for folder in folders]
    is_study = len(paths) > 1 and len({path.parent for path in paths}) == 1
    least = 2 if any(path.name.startswith("seed-") for path in paths) and not is_study else 1
    for length in range(least, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def is_metric(name: str) -> bool:
    """Whether a logged name, such as validation_accuracy, is a metric of a split."""
    split, _, metric = name.partition("_")
    return split in ("validation", "test") and bool(metric) and metric not in NOT_METRICS


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_run(folder: Path | str, *, shown: bool = True) -> RunLog:
    """Read a run's folder.

    shown: as weights_identity has it; False where runs are compared.

    Raises UserError: there is no run in it, or its run.json is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"RUN={folder} is no folder; name the folder of a run, such as runs/quickstart")
    file = folder / RUN_FILE
    if not file.is_file():
        inside = sorted(path.parent.name for path in folder.glob("*/run.json"))
        hint = f"name the runs in it, such as {folder / inside[0]}" if inside else "name the output_dir of a run"
        raise UserError(f"RUN={folder} holds no run, run.json is missing; {hint}")
    run = read_json(file, "the same training command writes it again")
    if not isinstance(run, dict) or not isinstance(run.get("recipe"), dict):
        raise UserError(f"{file} is of no run that anyformer trained: it has no recipe; name the output_dir of a run")
    log = RunLog(folder, run)
    if log.is_finished:
        log.model = Record.now(folder, shown=shown)
        log.run, log.damaged = of_its_model(folder, run, shown=shown)
    files = METRICS_FILE, ROUTER_FILE, GRADIENTS_FILE
    log.entries, log.routers, log.gradients = (_lines(folder / name, log.damaged) for name in files)
    return log


def read_metrics(path: Path) -> tuple[list[dict], int]:
    """(the entries of a metrics.jsonl, how many lines were damaged); an incomplete last line is not counted."""
    entries, damaged = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                raise ValueError("no entry of ours")
        except (ValueError, RecursionError):
            damaged += line.endswith(b"\n")  # a killed run may leave half a line
            continue
        if line.endswith(b"\n"):
            entries.append(entry)
    return entries, damaged


def _lines(file: Path, damaged: list[str]) -> list[dict]:
    if not file.is_file():
        return []
    entries, bad = read_metrics(file)
    if bad:
        damaged.append(f"{file.name}: {counted(bad, 'damaged line')} not shown")
    return entries


def _object(file: Path, damaged: list[str], now: Record) -> dict[str, Any]:
    """The JSON object in a file that a sweep wrote; empty if it is missing, damaged or of another record than now's."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        damaged.append(f"{file.name} is damaged and not shown; the sweep that wrote it measures it again without it")
        return {}
    if (other := Record.of(content).differs_from(now)) is not None:
        what = "another model" if other == "weights" else f"other {other}"
        damaged.append(f"{file.name} is of {what} and not shown; the sweep that wrote it measures it again")
        return {}
    return content
