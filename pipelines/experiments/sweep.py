"""A sweep: a study of every combination of some settings, each trained or measured, and a table of their results."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plugins import less_is_better, objective_of
from ..recipes.schema import Recipe
from ..recipes.secrets import without_secrets, without_signatures
from ..reporting.comparison import compare_runs
from ..reporting.run_log import BY_POSITION_FILE
from ..storage.atomic import write_atomically
from ..storage.folder_lock import FolderInUse, folder_lock
from ..words import short_metric
from .columns import measure_columns
from .samplers import Optuna
from .study import Member, Study, kept
from .sweep_file import Sweep, SweepSettings, setting
from .workers import Workers, last_line

TABLE, CHOSEN, PAGE = "sweep.csv", "chosen.json", "comparison.html"
SAID = "anyformer: "  # precedes the error message of a failed command of ours


@dataclass(kw_only=True)
class SweepStudy(Study):
    """The runs of a sweep, or the measurements of one saved model.

    combinations: of a grid or of a random choice; None where Optuna chooses. seeds: of each combination; [None]: the
    recipe's own. options: words of the command line that all commands get. compose: (model, task, settings) -> the
    recipe with which a saved model is measured. metric: what runs are ordered by. differences: as compare_runs tells.

    Raises UserError for a metric that the recipe does not measure.
    """

    sweep: Sweep
    recipe: Recipe
    combinations: list[Member] | None
    seeds: list[int] | list[None]
    options: list[str]
    compose: Callable[[str, str | None, list[str]], Recipe]
    metric: str = ""
    differences: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self):
        self.settings = self.sweep.settings
        self.metric = metric_of(self.settings, self.recipe)
        self.noun = "run" if self.settings.evaluate is None else "measurement"

    def members_of(self, combination: Member) -> list[Member]:
        """A run for each seed, in folders named by what is varied; one measurement, which no seed would change."""
        name, words, values = combination.name, combination.settings, combination.values
        place = self.folder / name
        if (model := self.settings.evaluate) is not None:
            file = self.folder / f"{name}.json"
            recipe = self.compose(model, self.settings.recipe, [*self.sweep.fixed, *words])
            how = {"recipe": recipe, "model": model, "result": file, "most": self.settings.max_examples}
            return [Member(name, place, [*words, "--output", str(file)], values, **how)]
        members = []
        for seed in self.seeds:
            folder = place if seed is None else place / f"seed-{seed}"
            of_seed = [] if seed is None else [f"training.seed={seed}"]
            settings = [*words, *of_seed, setting("training.output_dir", str(folder))]
            members.append(Member(name, folder, settings, values | {"seed": seed}))
        return members

    def run(self, at_once: int, entry: Callable, say: Callable = print, watch: Callable = lambda lines: None) -> int:
        """Make the members; returns 0, 1 if some have failed, or 128 + n if signal n stopped it.

        sweep.csv is written after each, and comparison.html of trained runs at the end.

        entry, watch: as of Workers. say: called with each line for the user.

        Raises UserError: another process makes this folder's sweep.
        """
        self.say = say
        self.workers = partial(Workers, at_once, entry, watch=watch)
        is_trained = self.settings.evaluate is None
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with folder_lock(self.folder):
                with self.workers([*self.command(), *self.sweep.fixed], self.ended) as workers:
                    code = self.make(workers)
                finished = [member.folder for member in self.members if member.state == "finished"]
                if code == 0 and finished and is_trained:
                    code = self.measure(finished)
                self.write_table()
                if len(finished) > 1 and is_trained:
                    self.differences = compare_runs(finished, self.folder / PAGE)
        except FolderInUse as holder:
            raise UserError(f"the sweep in {self.folder} is being made by {holder}; wait, or choose an --out") from None
        return code or int(len(finished) < len(self.members))

    def command(self) -> list[str]:
        """The words of the command line that make a member, before the settings that all have."""
        settings = self.settings
        if settings.evaluate is None:
            return ["train", settings.recipe, *self.options]
        limit = [] if settings.max_examples is None else ["--max-examples", str(settings.max_examples)]
        return ["evaluate", settings.evaluate, settings.recipe, *limit, *self.options]

    def to_make(self) -> Iterator[Member]:
        """The members but measurements that are known; whether a run is finished, `train` itself finds out."""
        for combination in self.combinations or ():
            self.members += self.members_of(combination)
        for member in self.chosen_by_results() if self.combinations is None else self.members:
            if member.model is not None and kept(member) is not None:
                member.read()
            else:
                yield member

    def chosen_by_results(self) -> Iterator[Member]:
        """Those of combinations that Optuna chooses; it gets a result when the runs of all seeds have ended."""
        path, question = self.folder / CHOSEN, self.question()
        before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {**question, "chosen": []}
        if {name: value for name, value in before.items() if name != "chosen"} != question:
            raise UserError(f"{self.folder} holds another sweep by Optuna; choose another folder by --out")
        optuna = Optuna(self.sweep, self.recipe.training.seed, less_is_better(self.metric), before["chosen"])
        open_trials: list[tuple[Any, list[Member]]] = []
        for number in range(self.settings.runs):
            for trial, members in list(open_trials):
                if all(member.state not in ("waiting", "running") for member in members):
                    values = self.values_of(members)
                    optuna.tell(trial, statistics.fmean(values) if len(values) == len(members) else None)
                    open_trials.remove((trial, members))
            combination, trial = optuna.choose(number)
            write_atomically(path, json.dumps(question | {"chosen": optuna.chosen}, indent=1))
            known = {member.folder: member for member in self.members}  # a combination chosen again has its runs
            members = [known.get(member.folder, member) for member in self.members_of(combination)]
            open_trials.append((trial, members))
            for member in members:
                if member.folder not in known:
                    self.members.append(member)
                    yield member

    def question(self) -> dict[str, Any]:
        """What Optuna's choices depend on; a sweep in which it differs needs another folder."""
        sweep, settings = self.sweep, self.settings
        varied = {key: str(values) for key, values in sweep.varied.items()}
        question = {"recipe": settings.recipe, "evaluate": settings.evaluate, "metric": self.metric}
        return without_signatures(question | {"fixed": sweep.fixed, "varied": varied, "variants": sweep.variants})

    def ended(self, member: Member, code: int, seconds: float) -> None:
        """Read and tell what a member has come to."""
        name = member.folder.relative_to(self.folder)
        if code == 0:
            member.read()
            value = member.metrics.get(self.metric)
            figure = f"no {self.metric}" if value is None else f"{self.metric.replace('_', ' ')} {short_metric(value)}"
            self.say(f"{name}: {figure}, {seconds / 60:.1f} min")
        else:
            last = last_line(member.log)
            reason = last.removeprefix(SAID) if last.startswith(SAID) else f"ended with {code}; see {member.log}"
            member.state = "stopped" if code > 128 else without_secrets(reason)
            self.say(f"{name}: {member.state}")
        self.write_table()

    def measure(self, finished: list[Path]) -> int:
        """Measure the columns and the perplexities by position of finished runs, unless they are known.

        Returns as `run`. A run that cannot read rows of the length, such as one with learned positions, is told.
        """
        columns = measure_columns(self.settings.columns, finished)
        for member in self.members:
            member.facts |= columns.get(member.folder, {})
        length, most = self.settings.by_position, self.settings.max_examples
        if length is None:
            return 0
        members = []
        for folder in finished:
            of_length, file = f"objective.sequence_length={length}", folder / BY_POSITION_FILE
            limit = [] if most is None else ["--max-examples", str(most)]
            words = [str(folder), of_length, "--by-position", *limit, "--output", str(file)]
            recipe, place = self.compose(str(folder), None, [of_length]), Path(f"{folder}.by-position")
            members.append(Member("", place, words, {}, recipe, model=str(folder), result=file, most=most))

        def ended(member: Member, code: int, seconds: float) -> None:
            if code and code <= 128:
                self.say(f"{member.log}: {last_line(member.log)}")

        unknown = [member for member in members if kept(member) is None]
        with self.workers(["evaluate", *self.options], ended) as workers:
            return Study(self.folder, unknown).make(workers)

    def values_of(self, members: list[Member]) -> list[float]:
        return [member.metrics[self.metric] for member in members if self.metric in member.metrics]

    def ordered(self) -> list[tuple[list[Member], float | None, float | None]]:
        """(the members of a combination, mean of the metric, deviation over seeds), best first, failed ones last."""
        groups: dict[str, list[Member]] = {}
        for member in self.members:
            groups.setdefault(member.name, []).append(member)
        rows = []
        for members in groups.values():
            values = self.values_of(members)
            mean = statistics.fmean(values) if values else None
            rows.append((members, mean, statistics.stdev(values) if len(values) > 1 else None))
        sign = 1 if less_is_better(self.metric) else -1
        return sorted(rows, key=lambda row: (row[1] is None, 0 if row[1] is None else sign * row[1]))

    def varied(self) -> list[str]:
        """The settings that vary."""
        return list(dict.fromkeys(key for member in self.members for key in member.values if key != "seed"))

    def write_table(self) -> None:
        """sweep.csv: a line for each member, with what was varied, its state and its metrics."""
        varied, columns = self.varied(), self.settings.columns
        metrics = dict.fromkeys(name for member in self.members for name in member.metrics)
        facts = dict.fromkeys(name for member in self.members for name in member.facts if name not in columns)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*varied, "seed", "state", *metrics, *columns, *facts, "folder"])
        for member in self.members:
            values = [without_secrets(member.values.get(key)) for key in varied]
            numbers = [(member.metrics | member.facts).get(name) for name in (*metrics, *columns, *facts)]
            writer.writerow([*values, member.values.get("seed"), member.state, *numbers, member.folder])
        write_atomically(self.folder / TABLE, text.getvalue())


def metric_of(settings: SweepSettings, recipe: Recipe) -> str:
    """The metric that runs are ordered by, as it is named among their metrics.

    Raises UserError for one that the recipe does not measure.
    """
    if settings.evaluate is not None:  # `evaluate` measures one split, and does not put it before a metric
        given = name = bare = settings.metric or next(iter(recipe.evaluation.metrics), "loss")
    else:
        given = settings.metric or recipe.evaluation.best_metric or "loss"
        name = given if given.startswith(("validation_", "test_")) else f"validation_{given}"
        bare = name.partition("_")[2]
    objective = objective_of(recipe)
    known = ["loss", *(objective.metrics_of_answers() or objective.metrics)]
    if not any(f"{bare}_".startswith(f"{metric}_") for metric in known):
        raise UserError(f"--metric {given}: the recipe measures {', '.join(known)}; name one of evaluation.metrics")
    return name
