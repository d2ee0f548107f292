"""More steps for a run: when a longer run can resume it, and `--extend`, which makes that possible.

A longer run can resume a checkpoint of step c if both have the same learning rates up to c. That holds at any step for
schedules that do not depend on the run's length (constant, inverse_sqrt), and for wsd until its decay begins. Otherwise
an extended run begins a new schedule where the old one ended (`training.restarts`), or has one more stage.
"""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...recipes.checks import check_recipe
from ...recipes.differences import LENGTH, resume_differences
from ...recipes.global_batch import SETTINGS
from ...recipes.schema import Recipe, StageSection, TrainingSection
from ...recipes.stage_plan import OF_RATE, rates_of, stages_of

ROUNDING = 1e-12  # of shares of the peak learning rate, from 0 to 1


def differs_in_length_alone(stored: dict[str, Any], recipe: Recipe) -> bool:
    """Whether a stored recipe and this one train the same except for the number of steps."""
    differences = {path for path, _, _ in resume_differences(stored, recipe.to_dict())}
    return bool(differences) and all(path in LENGTH or path.startswith("stages.") for path in differences)


def section_of(stored: dict[str, Any]) -> TrainingSection:
    """The training section of a stored recipe, without `lora` and `extra`."""
    names = {field.name for field in fields(TrainingSection)} - {"lora", "extra"}
    return TrainingSection(**{name: value for name, value in stored["training"].items() if name in names})


def schedule_of(stored: dict[str, Any]) -> Recipe:
    """The part of a stored recipe that determines a run's length and schedule: training section and stages."""
    names = {field.name for field in fields(StageSection)}
    stages = [{name: value for name, value in stage.items() if name in names} for stage in stored.get("stages", [])]
    return Recipe(training=section_of(stored), stages=[StageSection(**stage) for stage in stages])


def shared_steps(old: Recipe, old_total: int, new: Recipe, new_total: int) -> int:
    """The number of first steps that two runs have in common: with the same learning rates and in the same stages.

    The runs differ only in length. old_total, new_total: all of their steps.
    """
    from ..learning_rate import share_of_steps

    one, other = share_of_steps(old, old_total), share_of_steps(new, new_total)
    steps = min(old_total, new_total, same_stages(old, new))
    return next((step for step in range(steps) if abs(one(step) - other(step)) > ROUNDING), steps)


def same_stages(old: Recipe, new: Recipe) -> float:
    """The number of first steps in which two recipes have stages with the same rows and weight decay."""
    ends = sorted({stage.end for stage in (*stages_of(old), *stages_of(new))})
    begins = zip([0, *ends], ends)
    return next((begin for begin, _ in begins if stage_at(old, begin) != stage_at(new, begin)), math.inf)


def stage_at(recipe: Recipe, step: int) -> StageSection | None:
    """The settings, without those of the schedule, of the stage after the first `step` steps; None: there is none."""
    section = next((stage.section for stage in stages_of(recipe) if stage.begin <= step < stage.end), None)
    return section and replace(section, until=None, learning_rate=None, **dict.fromkeys(OF_RATE))


def extend(recipe: Recipe) -> Recipe:
    """The recipe with a new warm-up and decay, or a new stage, that begins where the finished run in output_dir ended.

    If the run has been extended by the same command before, the recipe has the same restarts or stages again, so that
    the command resumes it. Raises UserError if there is no finished run, it ended early, or the recipe has no more
    steps.
    """
    setting = f"training.output_dir={recipe.training.output_dir}"
    try:
        run = json.loads((Path(recipe.training.output_dir) / "run.json").read_text(encoding="utf-8"))
        stored, status, steps = run["recipe"], run["status"], run.get("steps")
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{setting} holds no run to extend; train it first, without --extend") from None
    restarts = section_of(stored).restarts
    again = recipe.with_(training={"restarts": restarts})
    extended = again.to_dict()
    # Whether a step has as many rows, divided otherwise, is checked when the run goes on.
    same = stored | {"training": stored["training"] | {name: extended["training"][name] for name in SETTINGS}}
    if restarts and next(resume_differences(same, extended), None) is None:
        return again
    old = schedule_of(stored)
    if 0 < len(recipe.stages) <= len(old.stages) and old.training.max_steps == recipe.training.max_steps:
        return recipe.with_(stages=_trained_so_far(recipe, old, [section.until for section in old.stages]))
    if status != "finished":
        raise UserError(f"{setting}: the run there is not finished; let the same command without --extend go on first")
    if "ended_early" in run:
        raise UserError(f"{setting}: {run['ended_early']}; begin another run from it, by model.name_or_path")
    most = recipe.training.max_steps
    if most > 0 and most <= steps:
        raise UserError(
            f"training.max_steps={most} is no more than the {steps:,} steps that the run in {setting} has made"
        )
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
