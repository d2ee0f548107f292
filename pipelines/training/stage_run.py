"""Stages in numbers of a run: rows of a step, how many at a time, and which of the run's rows each stage trains."""

from collections.abc import Callable
from dataclasses import dataclass

from ..data.rows import Rows
from ..data.staged_rows import StagedRows
from ..objectives.base import Objective
from ..recipes.global_batch import micro_batches
from ..recipes.stage_plan import LENGTH, Stage
from ..words import counted


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

    def tokens_at_a_time(self) -> int:
        """Of a forward pass."""
        return self.micro_batch * (self.objective.row_lengths()[0] or 1)

    def words(self) -> str:
        """`80 steps of 32 rows x 512 tokens, learning rate constant`."""
        said = f"{counted(self.stage.steps, 'step')} of {self.per_step} {self.objective.step_words()}"
        rate = self.stage.section.learning_rate
        said += "" if rate is None else f", learning rate {rate}"
        decay = self.stage.section.weight_decay
        return said + ("" if decay is None else f", weight decay {decay:g}")

    def facts(self) -> dict:
        """What run.json says of it."""
        length = getattr(self.objective.settings, LENGTH, None)
        return {"steps": [self.stage.begin, self.stage.end], "rows_per_step": self.per_step, LENGTH: length}


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
    return StagedRows([run.rows for run in runs], [len(run.numbers) for run in runs], seed)


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

    def remember(self, optimizer) -> None:
        """The optimizer is new: its groups have the recipe's own weight decay."""
        self._decay = [group.get("weight_decay", 0.0) for group in optimizer.param_groups]

    def set_weight_decay(self, optimizer, usual: float) -> None:
        """Scale each group's as the stage says. usual: training.weight_decay."""
        own = self.current.stage.section.weight_decay
        for group, decay in zip(optimizer.param_groups, self._decay):
            if "weight_decay" in group:
                group["weight_decay"] = decay if own is None or not usual else decay * (own / usual)
