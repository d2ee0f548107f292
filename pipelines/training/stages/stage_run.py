"""Stages in numbers of a run: rows of a step, how many at a time, and which of the run's rows each stage trains."""

from collections.abc import Callable
from dataclasses import dataclass

from ...data.mixture_order import shares_of
from ...data.rows import Rows
from ...data.staged_rows import StagedRows
from ...objectives.base import Objective
from ...recipes.global_batch import micro_batches
from ...recipes.stage_plan import LENGTH, Stage
from ...words import counted


@dataclass(frozen=True)
class StageRun:
    """A stage as it is trained.

    objective: bound to the stage's recipe. rows: those of its length. per_step: rows of a step over all processes.
    micro_batch: rows of a forward pass of one process, of which a step has `accumulated`. first: number of its first
    row in the run's.
    """

    stage: Stage
    objective: Objective
    rows: Rows
    per_step: int
    micro_batch: int
    accumulated: int
    first: int

    @property
    def numbers(self) -> range:
        """Its rows' numbers in the run's."""
        return range(self.first, self.first + self.per_step * self.stage.steps)

    @property
    def row_length(self) -> int:
        """Tokens of a row, at most; 1 where only the model knows."""
        return self.objective.row_lengths()[0] or 1

    def words(self) -> str:
        """`80 steps of 32 rows x 512 tokens, learning rate constant`."""
        said = f"{counted(self.stage.steps, 'step')} of {self.per_step} {self.objective.step_words()}"
        rate = self.stage.section.learning_rate
        said += "" if rate is None else f", learning rate {rate}"
        decay, weights = self.stage.section.weight_decay, self.stage.section.mixture
        said += "" if weights is None else ", " + ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        return said + ("" if decay is None else f", weight decay {decay:g}")

    def facts(self) -> dict:
        """What run.json says of it."""
        steps, length = [self.stage.begin, self.stage.end], self.objective.lengths().get(LENGTH)
        return {"steps": steps, "rows_per_step": self.per_step, LENGTH: length}


def stage_runs(found: list[tuple[Stage, Objective, Rows]], ranks: int, per_step: int) -> list[StageRun]:
    """The stages as they are trained by so many processes with rows of their own. found: with what was prepared.

    per_step: rows of a step of stages that do not say. Raises UserError for rows that cannot be shared out evenly.
    """
    runs, first = [], 0
    for stage, objective, rows in found:
        section = stage.recipe.training
        own = stage.section.global_batch_size or per_step
        runs.append(StageRun(stage, objective, rows, own, *micro_batches(section, ranks, own), first))
        first += own * stage.steps
    return runs


def rows_of_run(runs: list[StageRun], seed: int) -> StagedRows:
    """The rows of the whole run in the order of its steps."""
    shares = [shares_in(run) for run in runs]
    return StagedRows([run.rows for run in runs], shares, [len(run.numbers) for run in runs], seed)


def shares_in(run: StageRun) -> dict[str, float] | None:
    """The shares of the sources that a stage names, of those that it reads; None: as in the whole run."""
    weights, data, parts = run.stage.section.mixture, run.stage.recipe.data, run.rows.parts
    if weights is None:
        return None
    named = {name: weights.get(source.name, 0) for name, source in zip(parts, data.mixture, strict=True)}
    sizes = [{name: parts[name].facts[of] for name in parts} for of in ("tokens", "documents")]
    return {name: share for name, share in shares_of(named, data.weights_by, *sizes).items() if share > 0}


class StagedTraining:
    """Where a run with stages is, and what its trainer has to change there.

    runs: the stages. collator: objective -> what makes batches of its rows.
    """

    def __init__(self, runs: list[StageRun], rows: StagedRows, collator: Callable[[Objective], Callable]):
        self.runs, self.rows, self.collator = runs, rows, collator
        self.current = runs[0]
        self._decay: list[float] = []  # of each group of parameters, as the recipe's own section has it

    def at(self, step: int) -> StageRun:
        """The stage of the step that follows the first `step` ones, or the last one."""
        return next((run for run in self.runs if step < run.stage.end), self.runs[-1])

    def passes(self, step: int) -> float:
        """Passes over the rows of the current stage's length, after so many steps of the run."""
        stage = self.current.stage
        return self.rows.passes(stage.number, (step - stage.begin) * self.current.per_step)

    def tokens(self, step: int) -> dict[str, int]:
        """Tokens of each source after so many steps of the run."""
        return self.rows.tokens_before(self.current.first + (step - self.current.stage.begin) * self.current.per_step)

    def work(self, steps: int) -> int:
        """Places for tokens in the first so many steps of the run."""
        made = (min(max(0, steps - run.stage.begin), run.stage.steps) for run in self.runs)
        return sum(each * run.per_step * run.row_length for each, run in zip(made, self.runs))

    def remember(self, optimizer) -> None:
        """The optimizer is new: its groups have the recipe's own weight decay."""
        self._decay = [group.get("weight_decay", 0.0) for group in optimizer.param_groups]

    def set_weight_decay(self, optimizer, usual: float) -> None:
        """Scale each group's as the stage says. usual: training.weight_decay."""
        own = self.current.stage.section.weight_decay
        for group, decay in zip(optimizer.param_groups, self._decay):
            if "weight_decay" in group:
                group["weight_decay"] = decay if own is None or not usual else decay * (own / usual)
