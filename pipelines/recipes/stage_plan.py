"""Stages of a run: the steps and the recipe of each one. Nothing here imports torch.

A stage's recipe is the run's with the stage's settings in their places, so that all code for recipes works for stages.
The stages share the run's number of steps, peak learning rate and validation.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from ..errors import UserError, did_you_mean
from ..plugins import objective_of
from .data_section import sections_of
from .introspection import bounds_of, check_beside
from .schema import DataSection, Recipe, StageSection, TrainingSection
from .types import show, within_bounds

OF_RATE = ("min_lr_rate", "warmup_steps", "peak")  # settings of a stage's learning rate schedule
LENGTH, OVERLAP = "sequence_length", "evaluation_overlap"


@dataclass(frozen=True)
class Stage:
    """A stage, which has the steps `begin` + 1 to `end` of the run.

    number: counted from 0. recipe: the run's with the settings of the stage, and without stages.
    """

    number: int
    section: StageSection
    begin: int
    end: int
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.end - self.begin

    @property
    def warmup(self) -> int:
        """Steps of its warm-up."""
        warmup_steps = self.section.warmup_steps
        if warmup_steps is None:
            warmup_steps = 0 if self.number else self.recipe.training.warmup_steps
        return int(warmup_steps) if warmup_steps >= 1 else int(-(-self.steps * warmup_steps // 1))


def stages_of(recipe: Recipe) -> list[Stage]:
    """The stages of a recipe in order; [] if it has none."""
    ends = [end_of(section.until, recipe.training.max_steps) for section in recipe.stages]
    rows = enumerate(zip(recipe.stages, [0, *ends], ends))
    return [Stage(number, section, begin, end, recipe_of(recipe, section)) for number, (section, begin, end) in rows]


def end_of(until: float, total: int) -> int:
    """The step after which a stage ends."""
    return round(until * total) if until <= 1 else int(until)


def recipe_of(recipe: Recipe, section: StageSection) -> Recipe:
    changed = {name: value for name, value in vars(section).items() if value is not None}
    names = ("global_batch_size", "per_device_train_batch_size", "weight_decay")
    training = {name: changed[name] for name in names if name in changed}
    if "global_batch_size" in training:
        training["gradient_accumulation_steps"] = 1  # it follows from global_batch_size
    learned = recipe.learned if LENGTH not in changed else replace(recipe.learned, **{LENGTH: changed[LENGTH]})
    if getattr(learned, OVERLAP, 1) >= changed.get(LENGTH, math.inf):
        learned = replace(learned, **{OVERLAP: 1})  # validations have rows of the recipe's own length
    return recipe.with_(stages=[], training=training, **{recipe.learned_section: learned})


def check_stages(recipe: Recipe, check: Callable[[Recipe], None]) -> None:
    """Raise UserError for the first setting of recipe.stages that cannot be run.

    check: is called with the recipe of each stage; raises UserError if it cannot be run.
    """
    _check_borders(recipe)
    _check_around(recipe)
    _check_rates(recipe)
    objective = objective_of(recipe)
    for stage in stages_of(recipe):
        section = stage.section
        where = f"stages.{stage.number}"
        if recipe.teacher is not None and stage.recipe.learned != recipe.learned:
            raise UserError(f"{where}.sequence_length does not go with a teacher, which answers rows of one length")
        if section.mixture is not None and (objective.parts or recipe.task is not None):
            raise UserError(f"{where}.mixture weighs sources of plain text, which {objective.setting} does not read")
        _check_mixture(recipe.data, section, where)
        _check_batch(recipe.training, section, where)
        with of_stage(stage.number):
            check(stage.recipe)


def _check_borders(recipe: Recipe) -> None:
    total = recipe.training.max_steps
    before = 0
    if total < 1:
        raise UserError("stages are parts of training.max_steps, which is not set; set a number of steps")
    for number, section in enumerate(recipe.stages):
        until = section.until
        where = f"stages.{number}.until={show(until)}"
        if until is None:
            raise UserError(f"stages.{number}.until is not set; it is the step, or the share of all, at which it ends")
        if until > 1 and not float(until).is_integer():
            raise UserError(f"{where} is no step; a number above 1 is a whole step, at most 1 a share of all")
        end = end_of(until, total)
        if end <= before:
            than = f"stages.{number - 1}.until={show(recipe.stages[number - 1].until)}" if number else "step 0"
            raise UserError(f"{where} is step {end} of {total}, which is not above {than}; it must rise")
        before = end
    if before != total:
        raise UserError(
            f"stages.{len(recipe.stages) - 1}.until={show(recipe.stages[-1].until)} of the last stage ends at step "
            f"{before}, and training.max_steps={total}; write until: 1.0"
        )


def _check_around(recipe: Recipe) -> None:
    """Raise UserError for settings of the recipe that cannot be combined with stages."""
    training = recipe.training
    objective = objective_of(recipe)
    for number, section in enumerate(recipe.stages):
        if section.sequence_length is not None and LENGTH not in {row.name for row in fields(recipe.learned)}:
            raise UserError(f"stages.{number}.{LENGTH}={section.sequence_length}: {objective.setting} has no {LENGTH}")
    if any(data.streaming for data in sections_of(objective)):
        raise UserError("stages do not go with data.streaming=true, whose rows are of one order and length; store them")
    check_beside("training", training, [("restarts=", True, "does not go with stages; set their warmup_steps")])
    for setting, value in (
        ("training.save_steps", training.save_steps),
        ("evaluation.every_steps", recipe.evaluation.every_steps),
        ("evaluation.patience", recipe.evaluation.patience),
    ):
        if isinstance(value, str):
            raise UserError(f"{setting}={show(value)} is of passes over rows of one length; with stages, set a number")
    for name, why in (("sp", "whose loader cannot change"), ("pp", "which passes on batches of one shape")):
        if training.parallelism is not None and getattr(training.parallelism, name) > 1:
            raise UserError(f"stages do not go with training.parallelism.{name}, {why}; use dp_shard or tp")


def _check_rates(recipe: Recipe) -> None:
    """Raise UserError for schedules of the stages that do not fit together."""
    training = recipe.training
    named = [section.learning_rate is not None for section in recipe.stages]
    if not any(named):
        for number, section in enumerate(recipe.stages):
            why = f"has no effect without stages.{number}.learning_rate"
            check_beside(f"stages.{number}", section, [(name, True, why) for name in OF_RATE])
        return
    if not all(named):
        number = named.index(False)
        raise UserError(f"stages.{number}.learning_rate is not set, and other stages' is; set cosine or another")
    schedule = ("lr_scheduler_type=", "lr_scheduler_kwargs=")
    check_beside("training", training, [(name, True, "has no effect beside stages' rates") for name in schedule])
    for stage, rates in rates_of(recipe):
        section = stage.section
        where = f"stages.{stage.number}"
        if stage.warmup > stage.steps:
            setting = f"{where}.warmup_steps={show(section.warmup_steps)}"
            if section.warmup_steps is None:
                setting = f"training.warmup_steps={show(training.warmup_steps)}"
            raise UserError(f"{setting} is more than the {stage.steps} steps of {where}")
        if rates.peak == 0:
            raise UserError(
                f"{where} would train at learning rate 0, where the stage before has ended; set {where}.warmup_steps, "
                f"or stages.{stage.number - 1}.min_lr_rate"
            )
        why = f"has no effect with {where}.learning_rate=constant; remove it"
        check_beside(where, section, [("min_lr_rate", section.learning_rate == "constant", why)])
        if section.learning_rate != "constant" and section.min_lr_rate > rates.peak:
            raise UserError(f"{where}.min_lr_rate={section.min_lr_rate} is above {rates.peak:g}, where it begins")


class StageRates(NamedTuple):
    """Shares of the peak learning rate: at the beginning of a stage, after its warm-up and at its end."""

    begin: float
    peak: float
    end: float


def rates_of(recipe: Recipe) -> list[tuple[Stage, StageRates]]:
    """Each stage with its rates; for stages that set `learning_rate`."""
    rates = []
    before = 0.0
    for stage in stages_of(recipe):
        peak = stage.section.peak
        if peak is None:
            peak = 1.0 if stage.number == 0 or stage.warmup else before
        end = peak if stage.section.learning_rate == "constant" else stage.section.min_lr_rate
        rates.append((stage, StageRates(before, peak, end)))
        before = end
    return rates


def _check_mixture(data: DataSection, section: StageSection, where: str) -> None:
    if section.mixture is None:
        return
    names = [source.name for source in data.mixture]
    if not names:
        raise UserError(f"{where}.mixture weighs the sources of data.mixture, which has none; list them there")
    if None in names:
        raise UserError(f"{where}.mixture weighs sources by names; set data.mixture.{names.index(None)}.name, too")
    for name, weight in section.mixture.items():
        if name not in names:
            raise UserError(f"{where}.mixture.{name} is no name in data.mixture{did_you_mean(name, names)}")
        within_bounds(weight, bounds_of(at_least=0, at_most=1e6), f"{where}.mixture.{name}")
    if not any(section.mixture.values()):
        raise UserError(f"{where}.mixture={show(section.mixture)} leaves no source to read; give one a weight above 0")


def _check_batch(training: TrainingSection, section: StageSection, where: str) -> None:
    is_open = section.global_batch_size is None and training.global_batch_size is None
    why = "leaves open how many rows a step has; set global_batch_size"
    check_beside(where, section, [("per_device_train_batch_size", is_open, why)])
    if section.weight_decay and not training.weight_decay:
        raise UserError(f"{where}.weight_decay={section.weight_decay} scales training.weight_decay, which is 0")


@contextmanager
def of_stage(number: int) -> Iterator[None]:
    """Prefix the message of a UserError in the block with the stage's name."""
    try:
        yield
    except UserError as error:
        raise UserError(f"stages.{number}: {error}") from error
