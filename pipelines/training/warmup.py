"""Warm-up that begins above zero: transformers' schedules give the first step a learning rate of 0, which wastes it."""

from collections.abc import Callable

from torch.optim.lr_scheduler import LambdaLR


def begin_above_zero(scheduler, warmup_steps: int) -> None:
    """Change a scheduler of transformers so that step s of w warm-up steps (from 0) has the share (s + 1) / (w + 1).

    It had s / w. Steps after the warm-up, and schedules without one, keep their learning rates. torchtitan counts in
    the same way (components/lr_scheduler.py, linear_warmup_stable_decay).
    """
    if not isinstance(scheduler, LambdaLR) or warmup_steps < 1:
        return
    scheduler.lr_lambdas = [_shifted(factor, warmup_steps) for factor in scheduler.lr_lambdas]
    rates = [base * factor(scheduler.last_epoch) for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates):
        group["lr"] = rate
    scheduler._last_lr = rates


def _shifted(factor: Callable[[float], float], warmup_steps: int) -> Callable[[int], float]:
    if factor(0) > 0:  # cosine_warmup_with_min_lr can be told where to begin
        return factor
    # The schedule itself at a step between its own, so that warm-ups that are not linear keep their shape.
    stretch = warmup_steps / (warmup_steps + 1)
    return lambda step: factor((step + 1) * stretch if step < warmup_steps else step)
