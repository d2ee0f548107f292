"""A sweep: one recipe with every combination of some settings, as ordinary runs, and a table of their results."""

import csv
import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plugins import less_is_better, objective_of
from ..recipes.schema import Recipe
from ..recipes.secrets import without_secrets, without_signatures
from ..reporting.comparison import compare_runs
from ..reporting.run_log import read_run
from ..storage.atomic import write_atomically
from ..storage.folder_lock import FolderInUse, folder_lock
from ..words import short_metric
from .afterwards import measure_by_position
from .columns import measure_columns
from .samplers import Combination, Optuna
from .sweep_file import Sweep, setting
from .workers import Command, run_commands

TABLE, CHOSEN, PAGE = "sweep.csv", "chosen.json", "comparison.html"
SAID = "anyformer: "  # precedes the error message of a failed command of ours
ONE_SEED = (None,)


@dataclass
class Run:
    """One run of a sweep. state: waiting, running, finished, or why it failed."""

    combination: Combination
    seed: int | None
    folder: Path
    state: str = "waiting"
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, float | None] = field(default_factory=dict)

    def overrides(self) -> list[str]:
        """The settings that this run adds to the sweep's recipe."""
        seed = [] if self.seed is None else [f"training.seed={self.seed}"]
        return [*self.combination.settings, *seed, setting("training.output_dir", str(self.folder))]

    def log(self) -> Path:
        """The file for its command's output."""
        return self.folder.parent / f"{self.folder.name}.log"

    def is_known(self) -> bool:
        """Whether its result exists; False for a training, as `train` itself finds out that it is finished."""
        return False

    def read(self) -> None:
        """Read what the finished run has written."""
        run = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        self.state = "finished"
        self.metrics = {name: value for name, value in run["metrics"].items() if value is not None}
        self.facts = {name: run.get(name) for name in ("steps", "wall_seconds", "parameters")}


class SweepRuns:
    """The runs of a sweep in one folder, made one after the other or several at a time. noun: what one is called.

    Args:
        known: the combinations of a grid or of a random choice; None where Optuna chooses.
        seeds: of each combination; (None,) for the recipe's own.
        words: the command that makes a run, to which its settings are added.
        entry: runs a command in a process of its own, see `run_commands`.
        plugins: words of the command line that name plug-ins.
        say: called with each line for the user.

    Raises UserError for a metric that the recipe does not measure.
    """

    noun = "run"

    def __init__(
        self,
        sweep: Sweep,
        recipe: Recipe,
        folder: Path,
        known: list[Combination] | None,
        seeds: list[int] | tuple[None],
        words: list[str],
        entry: Callable[[list[str]], int],
        plugins: list[str] = (),
        say: Callable[[str], None] = print,
    ):
        self.plugins = list(plugins)
        self.sweep, self.recipe, self.folder, self.known, self.seeds = sweep, recipe, folder, known, seeds
        self.words, self.entry, self.say = words, entry, say
        self.metric = self._metric()
        self.runs: list[Run] = []
        self._of: dict[str, tuple[Run, float]] = {}

    def _metric(self) -> str:
        """The metric that runs are ordered by, as it is named among their metrics."""
        given, bare, name = self.metric_asked_for()
        objective = objective_of(self.recipe)
        known = ["loss", *(objective.metrics_of_answers() or objective.metrics)]
        if not any(f"{bare}_".startswith(f"{metric}_") for metric in known):
            raise UserError(f"--metric {given}: the recipe measures {', '.join(known)}; name one of evaluation.metrics")
        return name

    def metric_asked_for(self) -> tuple[str, str, str]:
        """The metric as it was given, without a split, and with one: `validation_accuracy`."""
        metric = self.sweep.settings.metric or self.recipe.evaluation.best_metric or "loss"
        name = metric if metric.startswith(("validation_", "test_")) else f"validation_{metric}"
        return metric, name.partition("_")[2], name

    def runs_of(self, combination: Combination) -> list[Run]:
        """A run for each seed, in folders named by what is varied."""
        place = self.folder / combination.name
        if self.seeds == ONE_SEED:
            return [Run(combination, None, place)]
        return [Run(combination, seed, place / f"seed-{seed}") for seed in self.seeds]

    def train(self, at_once: int, watch: Callable[[list[str]], None] = lambda lines: None) -> int:
        """Make or resume the runs; returns 0, 1 if some have failed, or 128 + n if signal n stopped them.

        A run that fails is reported and counted, and the others are made. sweep.csv is written after each run, and
        comparison.html of trained runs at the end. Raises UserError where another process makes this folder's sweep.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with folder_lock(self.folder):
                return self._train(at_once, watch)
        except FolderInUse as holder:
            raise UserError(f"the sweep in {self.folder} is being made by {holder}; wait, or choose an --out") from None

    def _train(self, at_once: int, watch: Callable[[list[str]], None]) -> int:
        code = run_commands(
            self._chosen_by_results() if self.known is None else self._known_at_once(),
            at_once,
            self.entry,
            self._ended,
            lambda running: watch([f"{Path(command.log).stem}: {command.last_line()}" for command in running]),
        )
        if code == 0 and self.finished():
            code = self.measure(at_once)
        self.write_table()
        self.compare()
        return code or int(len(self.finished()) < len(self.runs))

    def finished(self) -> list[Path]:
        """The folders of the finished runs."""
        return [run.folder for run in self.runs if run.state == "finished"]

    def compare(self) -> None:
        """Write comparison.html if several runs are finished."""
        finished = self.finished()
        if len(finished) > 1:
            compare_runs(finished, self.folder / PAGE)

    def measure(self, at_once: int) -> int:
        """Measure the columns and by_position of the sweep on its finished runs; returns as `train`."""
        settings, finished = self.sweep.settings, self.finished()
        measure_columns(settings.columns, finished)
        for run in self.runs:
            if run.state == "finished":
                run.columns = {name: read_run(run.folder).columns.get(name) for name in settings.columns}
        if settings.by_position is None:
            return 0
        request = finished, settings.by_position, settings.max_examples
        return measure_by_position(*request, self.entry, at_once, self.plugins, self.say)

    def _known_at_once(self) -> Iterator[Command]:
        for combination in self.known:
            self.runs += self.runs_of(combination)
        for run in list(self.runs):
            yield from self._begun(run)

    def _chosen_by_results(self) -> Iterator[Command]:
        """Commands of the combinations that Optuna chooses; it gets a result when the runs of all seeds have ended."""
        path, question = self.folder / CHOSEN, self.question()
        before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {**question, "chosen": []}
        if {name: value for name, value in before.items() if name != "chosen"} != question:
            raise UserError(f"{self.folder} holds another sweep by Optuna; choose another folder by --out")
        optuna = Optuna(self.sweep, self.recipe.training.seed, less_is_better(self.metric), before["chosen"])
        open_trials: list[tuple[Any, list[Run]]] = []
        for number in range(self.sweep.settings.runs):
            for trial, runs in list(open_trials):
                if all(run.state not in ("waiting", "running") for run in runs):
                    values = [run.metrics[self.metric] for run in runs if self.metric in run.metrics]
                    optuna.tell(trial, statistics.fmean(values) if len(values) == len(runs) else None)
                    open_trials.remove((trial, runs))
            combination, trial = optuna.choose(number)
            write_atomically(path, json.dumps(question | {"chosen": optuna.chosen}, indent=1))
            run_in = {run.folder: run for run in self.runs}  # a combination chosen again has its run already
            runs = [run_in.get(run.folder, run) for run in self.runs_of(combination)]
            open_trials.append((trial, runs))
            for run in runs:
                if run.folder not in run_in:
                    self.runs.append(run)
                    yield from self._begun(run)

    def question(self) -> dict[str, Any]:
        """What Optuna's choices depend on; a sweep in which it differs needs another folder."""
        sweep = self.sweep
        question = {"recipe": sweep.settings.recipe, "fixed": sweep.fixed, "metric": self.metric}
        varied = {key: str(values) for key, values in sweep.varied.items()}
        return without_signatures(question | {"varied": varied, "variants": sweep.variants})

    def _begun(self, run: Run) -> Iterator[Command]:
        if run.is_known():
            run.read()
            return
        command = Command([*self.words, *run.overrides()], run.log())
        self._of[str(command.log)] = run, time.monotonic()
        run.state = "running"
        yield command

    def _ended(self, command: Command, code: int) -> None:
        run, started = self._of[str(command.log)]
        name = run.folder.relative_to(self.folder)
        if code == 0:
            run.read()
            value = run.metrics.get(self.metric)
            figure = f"no {self.metric}" if value is None else f"{self.metric.replace('_', ' ')} {short_metric(value)}"
            self.say(f"{name}: {figure}, {(time.monotonic() - started) / 60:.1f} min")
        else:
            last = command.last_line()
            reason = last.removeprefix(SAID) if last.startswith(SAID) else f"ended with {code}; see {command.log}"
            run.state = "stopped" if code > 128 else without_secrets(reason)
            self.say(f"{name}: {run.state}")
        self.write_table()

    def ordered(self) -> list[tuple[Combination, list[Run], float | None, float | None]]:
        """(combination, its runs, mean of the metric, deviation over seeds), the best first, failed ones last."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.combination.name, []).append(run)
        rows = []
        for runs in groups.values():
            values = [run.metrics[self.metric] for run in runs if self.metric in run.metrics]
            mean = statistics.fmean(values) if values else None
            rows.append((runs[0].combination, runs, mean, statistics.stdev(values) if len(values) > 1 else None))
        sign = 1 if less_is_better(self.metric) else -1
        return sorted(rows, key=lambda row: (row[2] is None, 0 if row[2] is None else sign * row[2]))

    def write_table(self) -> None:
        """sweep.csv: a line for each run, with what was varied, its state and its metrics."""
        varied = list(dict.fromkeys(key for run in self.runs for key in run.combination.values))
        metrics = list(dict.fromkeys(name for run in self.runs for name in run.metrics))
        facts = list(dict.fromkeys(name for run in self.runs for name in run.facts))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self.sweep.settings.columns
        writer.writerow([*varied, "seed", "state", *metrics, *columns, *facts, "folder"])
        for run in self.runs:
            values = [without_secrets(run.combination.values.get(key)) for key in varied]
            numbers = [run.metrics.get(name) for name in metrics] + [run.columns.get(name) for name in columns]
            numbers += [run.facts.get(name) for name in facts]
            writer.writerow([*values, run.seed, run.state, *numbers, run.folder])
        write_atomically(self.folder / TABLE, text.getvalue())
