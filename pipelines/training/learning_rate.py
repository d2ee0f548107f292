"""The learning rate over a run: transformers' schedules, warm-up from above zero, restarts and stages."""

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from ..errors import UserError
from ..patches import write
from ..plugins import SCHEDULES
from ..recipes.schema import Recipe, TrainingSection
from ..recipes.stage_plan import Stage, StageRates, rates_of

# With one of these arguments, `cosine` means transformers' cosine_with_min_lr.
COSINE_FLOORS = {"min_lr", "min_lr_rate"}


def schedule(section: TrainingSection, total_steps: int | None) -> tuple[str, dict]:
    """(transformers' name of the schedule, its arguments); `wsd` decays over the last `decay_steps` of all steps."""
    name, kwargs = section.lr_scheduler_type, dict(section.lr_scheduler_kwargs)
    if name in SCHEDULES:  # a plug-in's schedule, which later replaces this one (share_of_steps)
        return "constant", {}
    if name == "cosine" and COSINE_FLOORS & kwargs.keys():
        name = "cosine_with_min_lr"
    if name == "wsd":
        name = "warmup_stable_decay"
    if name == "warmup_stable_decay":
        share = kwargs.get("num_decay_steps", section.decay_steps)
        if share < 1 and total_steps is None:
            raise UserError("training.decay_steps below 1 is a share of training.max_steps, which is not set")
        kwargs["num_decay_steps"] = round(share * total_steps) if share < 1 else int(share)
    return name, kwargs


def begin_above_zero(scheduler, warmup_steps: int) -> None:
    """Change a transformers scheduler so that warm-up step s (from 0) of w has the share (s + 1) / (w + 1) of the peak.

    By default it is s / w. Steps after the warm-up, and schedules without one, keep their learning rates. torchtitan
    does the same (components/lr_scheduler.py, linear_warmup_stable_decay).
    """
    if not isinstance(scheduler, LambdaLR) or warmup_steps < 1:
        return
    replace_shares(scheduler, [_shifted(factor, warmup_steps) for factor in scheduler.lr_lambdas])


def replace_shares(scheduler: LambdaLR, shares: list[Callable[[int], float]]) -> None:
    """Replace a scheduler's functions from steps to shares of the peak, one for each group of parameters."""
    scheduler.lr_lambdas = shares
    rates = [base * factor(scheduler.last_epoch) for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates):
        group["lr"] = rate
    write(scheduler, "_last_lr", rates)


def _shifted(factor: Callable[[float], float], warmup_steps: int) -> Callable[[int], float]:
    if factor(0) > 0:  # the warm-up of cosine_warmup_with_min_lr may begin above zero
        return factor
    # The schedule is read between its own steps, so that warm-ups that are not linear keep their shape.
    stretch = warmup_steps / (warmup_steps + 1)
    # cosine_warmup_with_min_lr would rise above the peak: it reaches it one step before the warm-up ends.
    return lambda step: min(1.0, factor((step + 1) * stretch)) if step < warmup_steps else factor(step)


def share_of_steps(recipe: Recipe, total: int) -> Callable[[int], float]:
    """The function from a step (counted from 0) to its share of the peak learning rate, in a run of `total` steps.

    The schedule begins anew at each of `training.restarts`, as in a run that is as long as the stretch up to the next
    one. Stages may have their own rates. Raises UserError for schedules that depend on the losses.
    """
    if any(stage.learning_rate is not None for stage in recipe.stages):
        return _share_of_stages(recipe)
    return _share_with_restarts(recipe.training, total)


def own_shares(section: TrainingSection, total: int) -> Callable[[int], float] | None:
    """The same function where transformers has no such schedule: with restarts, or by a plug-in; None: it has one."""
    if section.restarts or section.lr_scheduler_type in SCHEDULES:
        return _share_with_restarts(section, total)
    return None


def _share_with_restarts(section: TrainingSection, total: int) -> Callable[[int], float]:
    starts = [0, *section.restarts]
    return _in_turn(starts, [_shares(section, end - start) for start, end in zip(starts, [*starts[1:], total])])


def _in_turn(starts: list[int], parts: list[Callable[[int], float]]) -> Callable[[int], float]:
    """The function of stretches that begin at `starts`, each of which counts its own steps."""

    def share(step: int) -> float:
        number = bisect_right(starts, step) - 1
        return parts[number](step - starts[number])

    return share


def _shares(section: TrainingSection, total: int) -> Callable[[int], float]:
    """The same function for one stretch of `total` steps, by transformers' scheduler and `begin_above_zero`."""
    name, kwargs = schedule(section, total)
    warmup = int(section.warmup_steps) if section.warmup_steps >= 1 else math.ceil(total * section.warmup_steps)
    if section.lr_scheduler_type in SCHEDULES:
        row = SCHEDULES[section.lr_scheduler_type]
        return lambda step: row(step, total, warmup, **section.lr_scheduler_kwargs)
    unused = torch.optim.SGD([torch.zeros(1)], lr=section.learning_rate)
    scheduler = get_scheduler(name, unused, warmup, total, kwargs)
    if not isinstance(scheduler, LambdaLR):
        raise UserError(f"training.lr_scheduler_type={section.lr_scheduler_type} follows losses and cannot begin again")
    begin_above_zero(scheduler, warmup)
    return scheduler.lr_lambdas[0]


def _share_of_stages(recipe: Recipe) -> Callable[[int], float]:
    """The same function for stages with their own learning rates: each goes on from the last one's final share.

    A stage of n steps, w of them warm-up, follows transformers' schedule of n steps with w of warm-up, scaled to its
    first share, its peak and its final share; the warm-up is counted as by `begin_above_zero`.
    """
    rates = rates_of(recipe)
    return _in_turn([stage.begin for stage, _ in rates], [partial(_share_in_stage, *each) for each in rates])


def _share_in_stage(stage: Stage, rates: StageRates, step: int) -> float:
    begin, peak, end = rates
    warmup = stage.warmup
    if step < warmup:
        return begin + (peak - begin) * (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, stage.steps - warmup))
    if stage.section.learning_rate == "decay":
        return peak + (end - peak) * progress
    if stage.section.learning_rate == "cosine":
        return end + (peak - end) * (1 + math.cos(math.pi * progress)) / 2
    return peak
