"""More steps for a run: when a longer one is its continuation, and `--extend`, which makes it one.

A checkpoint of step c belongs to a longer run where both have had the same learning rates up to c. Schedules that do
not look ahead (constant, inverse_sqrt) allow that at any step, wsd until its decay begins. Others have decayed by then:
an extended run begins a new stretch of the schedule where the old one ended (`training.restarts`), or has a stage more.
"""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...recipes.checks import check_recipe
from ...recipes.differences import LENGTH, resume_differences
from ...recipes.schema import Recipe, StageSection, TrainingSection
from ...recipes.stage_plan import OF_RATE, rates_of, stages_of

ROUNDING = 1e-12  # of shares of the peak learning rate, from 0 to 1


def differs_in_length_alone(stored: dict[str, Any], recipe: Recipe) -> bool:
    """Whether a stored recipe and this one train alike but for the number of steps."""
    found = {path for path, _, _ in resume_differences(stored, recipe.to_dict())}
    return bool(found) and all(path in LENGTH or path.startswith("stages.") for path in found)


def section_of(stored: dict[str, Any]) -> TrainingSection:
    """The training section of a stored recipe, as far as it says how long a run is and how it learns."""
    names = {field.name for field in fields(TrainingSection)} - {"lora", "extra"}
    return TrainingSection(**{name: value for name, value in stored["training"].items() if name in names})


def schedule_of(stored: dict[str, Any]) -> Recipe:
    """A stored recipe, as far as it says how long a run is and how its steps follow each other."""
    names = {field.name for field in fields(StageSection)}
    stages = [{name: value for name, value in each.items() if name in names} for each in stored.get("stages", [])]
    return Recipe(training=section_of(stored), stages=[StageSection(**each) for each in stages])


def shared_steps(old: Recipe, old_total: int, new: Recipe, new_total: int) -> int:
    """How many first steps two runs make alike: with the same learning rates and in the same stages.

    The runs differ in length alone; the total numbers of their steps are given.
    """
    from ..learning_rate import share_of_steps

    one, other = share_of_steps(old, old_total), share_of_steps(new, new_total)
    steps = min(old_total, new_total, same_stages(old, new))
    return next((step for step in range(steps) if abs(one(step) - other(step)) > ROUNDING), steps)


def same_stages(old: Recipe, new: Recipe) -> float:
    """How many first steps two recipes make in stages that have the same rows and weight decay."""
    ends = sorted({stage.end for stage in (*stages_of(old), *stages_of(new))})
    begins = zip([0, *ends], ends)
    return next((begin for begin, _ in begins if stage_at(old, begin) != stage_at(new, begin)), math.inf)


def stage_at(recipe: Recipe, step: int) -> StageSection | None:
    """The settings of the stage after the first `step` steps, but for those of its schedule; None: there is none."""
    found = next((stage.section for stage in stages_of(recipe) if stage.begin <= step < stage.end), None)
    return found and replace(found, until=None, learning_rate=None, **dict.fromkeys(OF_RATE))


def extend(recipe: Recipe) -> None:
    """Let the recipe begin warm-up and decay anew, or a stage, where the finished run in its output_dir ended.

    A run that has been extended to this recipe already keeps its restarts or stages, so that the same command goes on
    with it. Raises UserError where there is no finished run, it ended early, or no more steps are asked for.
    """
    where = f"training.output_dir={recipe.training.output_dir}"
    try:
        run = json.loads((Path(recipe.training.output_dir) / "run.json").read_text(encoding="utf-8"))
        stored, status, steps = run["recipe"], run["status"], run.get("steps")
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{where} holds no run to extend; train it first, without --extend") from None
    restarts = section_of(stored).restarts
    extended = replace(recipe, training=replace(recipe.training, restarts=restarts))
    if restarts and next(resume_differences(stored, extended.to_dict()), None) is None:
        recipe.training.restarts = restarts
        return
    old = schedule_of(stored)
    if 0 < len(recipe.stages) <= len(old.stages) and old.training.max_steps == recipe.training.max_steps:
        recipe.stages = _trained_so_far(recipe, old, [section.until for section in old.stages])
        return
    if status != "finished":
        raise UserError(f"{where}: the run there is not finished; let the same command without --extend go on first")
    if "ended_early" in run:
        raise UserError(f"{where}: {run['ended_early']}; begin another run from it, by model.name_or_path")
    most = recipe.training.max_steps
    if most > 0 and most <= steps:
        raise UserError(
            f"training.max_steps={most} is no more than the {steps:,} steps that the run in {where} has made"
        )
    if not recipe.stages:
        recipe.training.restarts = [*restarts, steps]
        return
    trained = _trained_so_far(recipe, old, [float(stage.end) for stage in stages_of(old)])
    recipe.stages = [*trained, *(recipe.stages[len(trained) :] or [_last_again(old)])]
    check_recipe(recipe)


def _trained_so_far(recipe: Recipe, old: Recipe, ends: list[float]) -> list[StageSection]:
    """The stages of a run as the recipe has them, and those that it was extended by; all with these ends."""
    there = [*recipe.stages, *old.stages[len(recipe.stages) :]]
    return [replace(section, until=end) for section, end in zip(there, ends)]


def _last_again(old: Recipe) -> StageSection:
    """A stage as the last one of a run, to follow it; where the learning rate has decayed, it warms up first."""
    section = replace(old.stages[-1], until=1.0)
    if section.learning_rate is None:
        return section
    *_, (_, rates) = rates_of(old)
    return replace(section, peak=rates.peak, warmup_steps=0.0 if rates.end == rates.peak else old.training.warmup_steps)
