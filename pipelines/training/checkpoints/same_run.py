"""Two recipes: do they train the same run, and how many steps have they in common? No checkpoint is asked here."""

import fnmatch
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from ...recipes.checks import FOLLOWS_VALIDATIONS
from ...recipes.own_settings import flat_settings
from ...recipes.schema import MINIMAL_PAIRS, Recipe, StageSection, TrainingSection
from ...recipes.stage_plan import OF_RATE, stages_of
from ...recipes.types import show
from ..learning_rate import share_of_steps

# Settings of the length of a run; a longer run may go on from a finished one.
LENGTH = ("training.max_steps", "training.num_train_epochs", "training.restarts")

# Settings that do not change the mathematics of a run: only these may differ between a run and its resumption.
FREE_ON_RESUME = (
    "name",
    "description",
    "model.preset",
    "model.attn_implementation",
    "model.experts_implementation",
    "publish.*",
    "evaluation.*",
    "data.cache_dir",
    "data.description",
    "data.bad_rows",
    "data.test_files",
    "data.test_split",
    "objective.*evaluation_overlap",
    "training.output_dir",
    "training.resume",
    "training.audit_samples",
    "training.parallelism*",
    "training.report_to",
    "training.run_name",
    "training.project",
    "training.logging_*",
    "training.log_*",
    "training.save_*",
    "training.trackio_*",
    "training.dataloader_num_workers",
    "training.dataloader_p*",
    "training.per_device_eval_batch_size",
    "training.eval_*",
    "training.skip_memory_metrics",
    "training.debug",
    "training.ddp_timeout",
    "training.gradient_checkpointing",
    # These either act at a step where the run would have ended, or only report.
    "training.bad_step",
    "training.max_bad_steps",
    "training.*_spike",
    "training.*_warning",
    "training.stall_minutes",
)


def resume_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first of `resume_differences` in words, those of the run's length last; None: the runs are the same."""
    differences = list(resume_differences(old, new))
    if not differences:
        return None
    path, before, now = min(differences, key=lambda difference: difference[0] in LENGTH)
    return f"{path} is {show(before)} there and {show(now)} here"


def resume_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two `Recipe.to_dict()`s would train differently: path, value in `old`, value in `new`.

    A setting that one of them lacks is null there, and so is an empty mapping or list.
    """
    before = flat_settings(_numbered(old))
    after = flat_settings(_numbered(new))
    bound: tuple[str, ...] = ()  # settings that are free unless the learning rate follows the validations
    if after.get("training.lr_scheduler_type") in FOLLOWS_VALIDATIONS:
        names = ("every_steps", *of_best_metric(after.get("evaluation.best_metric")))
        bound = ("training.per_device_eval", *(f"evaluation.{name}" for name in names))
    for path in dict.fromkeys([*after, *before]):
        is_free = any(fnmatch.fnmatchcase(path, pattern) for pattern in FREE_ON_RESUME)
        if (path.startswith(bound) or not is_free) and _or_null(before, path) != _or_null(after, path):
            yield path, before.get(path), after.get(path)


def _or_null(settings: dict[str, Any], path: str) -> Any:
    value = settings.get(path)
    return None if value in ({}, []) else value


def _numbered(value: Any) -> Any:
    """Replace each list of sections by a mapping from their numbers to them."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    return {key: _numbered(item) for key, item in value.items()} if isinstance(value, dict) else value


def of_best_metric(metric: str | None) -> tuple[str, str]:
    """The settings of the evaluation section on which the values by which `metric` chooses the best model depend."""
    return "best_metric", MINIMAL_PAIRS if metric == MINIMAL_PAIRS else "max_rows"


def rows_asked_for(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings that may change when a run is resumed, and that decide which rows validations measure."""
    names = "evaluation_overlap", f"evaluation.{MINIMAL_PAIRS}", "evaluation.best_metric"  # pairs may be the metric
    return {path: value for path, value in flat_settings(recipe).items() if any(name in path for name in names)}


# ------------------------------------------------------------------------------------- schedules of two lengths

# A longer run can resume a checkpoint of step c if both have the same learning rates up to c. That holds at any step
# for schedules that do not depend on the run's length (constant, inverse_sqrt), and for wsd until its decay begins.

ROUNDING = 1e-12  # of shares of the peak learning rate, from 0 to 1


def section_of(stored: dict[str, Any]) -> TrainingSection:
    """The training section of a stored recipe, without `lora` and `extra`."""
    names = {row.name for row in fields(TrainingSection)} - {"lora", "extra"}
    return TrainingSection(**{name: value for name, value in stored["training"].items() if name in names})


def schedule_of(stored: dict[str, Any]) -> Recipe:
    """The part of a stored recipe that determines a run's length and schedule: training section and stages."""
    return Recipe(training=section_of(stored), stages=[StageSection(**stage) for stage in stored["stages"]])


def shared_steps(old: Recipe, old_total: int, new: Recipe, new_total: int) -> int:
    """The number of first steps that two runs have in common: with the same learning rates and in the same stages.

    The runs differ only in length. old_total, new_total: all of their steps.
    """
    one, other = share_of_steps(old, old_total), share_of_steps(new, new_total)
    steps = min(old_total, new_total, same_stages(old, new))
    for step in range(steps):
        if abs(one(step) - other(step)) > ROUNDING:
            return step
    return steps


def same_stages(old: Recipe, new: Recipe) -> float:
    """The number of first steps in which two recipes have stages with the same rows and weight decay."""
    ends = sorted({stage.end for stage in (*stages_of(old), *stages_of(new))})
    for begin in [0, *ends[:-1]]:
        if stage_at(old, begin) != stage_at(new, begin):
            return begin
    return math.inf


def stage_at(recipe: Recipe, step: int) -> StageSection | None:
    """The settings, without those of the schedule, of the stage after the first `step` steps; None: there is none."""
    for stage in stages_of(recipe):
        if stage.begin <= step < stage.end:
            return replace(stage.section, until=None, learning_rate=None, **dict.fromkeys(OF_RATE))
    return None
