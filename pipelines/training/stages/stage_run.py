"""The stages of a run: rows per step, rows per forward pass, and which of the run's rows each stage trains."""

from collections.abc import Callable
from dataclasses import dataclass

from ...data.order import shares_of
from ...data.ordered_rows import OrderedRows, passes, staged
from ...data.rows import Rows
from ...objectives.data import Data
from ...recipes.global_batch import micro_batches
from ...recipes.stage_plan import LENGTH, Stage
from ...words import counted


@dataclass(frozen=True)
class StageRun:
    """A stage of a run.

    data: with the objective that is bound to the stage's recipe. rows: those of its length. per_step: rows of a step
    over all processes. micro_batch: rows of a forward pass in one process. accumulated: forward passes of a step in one
    process. first: the number, among the run's rows, of its first row.
    """

    stage: Stage
    data: Data
    rows: Rows
    per_step: int
    micro_batch: int
    accumulated: int
    first: int

    @property
    def numbers(self) -> range:
        """The numbers of its rows among the run's rows."""
        return range(self.first, self.first + self.per_step * self.stage.steps)

    @property
    def row_length(self) -> int:
        """The maximum number of tokens in a row; 1 if only the model knows."""
        return self.data.objective.planned().lengths[0] or 1

    def words(self) -> str:
        """`80 steps of 32 rows x 512 tokens, learning rate constant`."""
        words = f"{counted(self.stage.steps, 'step')} of {self.per_step} {self.data.objective.words.step}"
        rate = self.stage.section.learning_rate
        words += "" if rate is None else f", learning rate {rate}"
        decay, weights = self.stage.section.weight_decay, self.stage.section.mixture
        words += "" if weights is None else ", " + ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        return words + ("" if decay is None else f", weight decay {decay:g}")

    def facts(self) -> dict:
        """The entry of run.json about it."""
        steps, length = [self.stage.begin, self.stage.end], self.data.objective.lengths().get(LENGTH)
        return {"steps": steps, "rows_per_step": self.per_step, LENGTH: length}


def stage_runs(found: list[tuple[Stage, Data, Rows]], ranks: int, per_step: int) -> list[StageRun]:
    """The StageRuns of stages with their prepared data and rows.

    ranks: number of processes that read different rows. per_step: rows of a step in stages that do not set it. Raises
    UserError for rows that cannot be divided evenly.
    """
    runs, first = [], 0
    for stage, data, rows in found:
        section = stage.recipe.training
        rows_of_step = stage.section.global_batch_size or per_step
        runs.append(StageRun(stage, data, rows, rows_of_step, *micro_batches(section, ranks, rows_of_step), first))
        first += rows_of_step * stage.steps
    return runs


def rows_of_run(runs: list[StageRun], seed: int) -> OrderedRows:
    """The rows of the whole run in the order of its steps."""
    shares = [shares_in(run) for run in runs]
    return staged([run.rows for run in runs], shares, [len(run.numbers) for run in runs], seed)


def shares_in(run: StageRun) -> dict[str, float] | None:
    """{source: share} of the mixture of a stage, without sources that it does not read; None: as in the whole run."""
    weights, data, parts = run.stage.section.mixture, run.stage.recipe.data, run.rows.parts
    if weights is None:
        return None
    named = {name: weights.get(source.name, 0) for name, source in zip(parts, data.mixture, strict=True)}
    sizes = [{name: parts[name].facts[of] for name in parts} for of in ("tokens", "documents")]
    return {name: share for name, share in shares_of(named, data.weights_by, *sizes).items() if share > 0}


class StagedTraining:
    """The current stage of a run, and what its trainer has to change in it.

    runs: the stages. collator: data -> the collator for its rows. shares: steps of the run -> (step -> share of the
    peak learning rate); None: the stages have no rates of their own.
    """

    def __init__(
        self,
        runs: list[StageRun],
        rows: OrderedRows,
        collator: Callable[[Data], Callable],
        shares: Callable[[int], Callable[[int], float]] | None = None,
    ):
        self.runs, self.rows, self.collator, self.shares = runs, rows, collator, shares
        self.current = runs[0]
        self._decay: list[float] = []  # weight decay of each parameter group by the recipe's training section

    def at(self, step: int) -> StageRun:
        """The stage of the step that follows the first `step` steps; after the run's end, the last stage."""
        return next((run for run in self.runs if step < run.stage.end), self.runs[-1])

    def passes(self, step: int) -> float:
        """Passes over the rows of the current stage's length, after `step` steps of the run."""
        return passes(self.rows, self.current.rows, self.trained(step))

    def trained(self, steps: int) -> int:
        """The number of rows that the first steps of the run train."""
        run = self.at(steps)
        return run.first + (steps - run.stage.begin) * run.per_step

    def work(self, steps: int) -> int:
        """The maximum number of tokens in the first `steps` steps of the run."""
        trained = (min(max(0, steps - run.stage.begin), run.stage.steps) for run in self.runs)
        return sum(steps_made * run.per_step * run.row_length for steps_made, run in zip(trained, self.runs))

    def remember(self, optimizer) -> None:
        """Remember the groups' weight decay when the optimizer is new and has that of the recipe."""
        self._decay = [group.get("weight_decay", 0.0) for group in optimizer.param_groups]

    def set_weight_decay(self, optimizer, usual: float) -> None:
        """Scale the weight decay of each group to that of the current stage. usual: training.weight_decay."""
        stage_decay = self.current.stage.section.weight_decay
        for group, decay in zip(optimizer.param_groups, self._decay):
            if "weight_decay" in group:
                group["weight_decay"] = decay if stage_decay is None or not usual else decay * (stage_decay / usual)
