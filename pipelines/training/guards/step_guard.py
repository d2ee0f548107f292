"""The step guard looks at each optimizer step before it is made: bad ones stop the run or are left out.

Bad is a step whose loss or gradient norm is NaN or infinite, or more than a given multiple of what is usual. What is
usual is the median of the last steps, which spikes do not move. Gradient norms that are merely unusual are reported.
"""

import json
import math
import statistics
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch
from anyformer.modeling.experts_bias import forget_counts

from ...errors import UserError
from ...recipes.schema import TrainingSection
from ...storage.atomic import write_atomically
from ..checkpoints.run_folder import say
from .loss_guard import LossGuard, words_of_rows

FILE = "step_guard.json"
REMEMBERED = 128  # steps whose median is what is usual
ENOUGH = 16  # of them; before, a median says little
REPORTED = 100  # skipped steps of which run.json says more than their number
SAID = 8  # gradient norms far above the usual that get a line each; a run whose loss nears zero has dozens


class StepGuard:
    """Decides before the optimizer whether a step is made; all processes decide alike.

    Args:
        section: bad_step, max_bad_steps, loss_spike, grad_norm_spike and grad_norm_warning of it count.

    Attributes: `skipped` is the number of steps left out, `reports` what is known of them. They and what is usual are
    saved in checkpoints, so that a resumed run decides the same. `warned` counts gradient norms far above the usual,
    since the run was begun or resumed.
    """

    def __init__(self, section: TrainingSection | None = None):
        self.section = section or TrainingSection()
        self.skips = self.section.bad_step == "skip"
        self.losses: deque[float] = deque(maxlen=REMEMBERED)
        self.norms: deque[float] = deque(maxlen=REMEMBERED)
        self.skipped = self.warned = self.in_a_row = 0
        self.reports: list[dict] = []
        self._waiting: list[tuple[int, torch.Tensor | float]] = []  # norms nobody has waited for yet
        self._made = self._left_out = 0  # steps since the last log
        self._before: tuple[int, torch.Tensor, list] | None = None

    @property
    def decides(self) -> bool:
        """Whether each step is looked at before it is made, for which the host waits for the device."""
        return self.skips or self.section.loss_spike is not None or self.section.grad_norm_spike is not None

    def begin(self, checkpoint: str | Path | None) -> None:
        """Training begins, at its beginning or at a checkpoint."""
        file = None if checkpoint is None else Path(checkpoint) / FILE
        if file is None or not file.is_file():
            return
        saved = json.loads(file.read_text(encoding="utf-8"))
        self.losses.extend(saved["losses"])
        self.norms.extend(saved["norms"])
        self.skipped, self.in_a_row, self.reports = saved["skipped"], saved["in_a_row"], saved["reports"]

    def save(self, folder: Path) -> None:
        """Write what the next decisions need into a checkpoint's folder; nothing where there are none."""
        if self.decides:
            saved = {name: list(getattr(self, name)) for name in ("losses", "norms", "reports")}
            saved |= {"skipped": self.skipped, "in_a_row": self.in_a_row}
            write_atomically(folder / FILE, json.dumps(saved))

    # ---- a step

    def remember(self, step: int, total: torch.Tensor, sums: Sequence) -> None:
        """What has been added up since the last log, before a step adds to it.

        total: of the losses. sums: objects with `sums`, which they replace and do not change.
        """
        if self.decides and (self._before is None or self._before[0] != step):
            self._before = step, total.clone(), [(each, each.sums) for each in sums]

    def leaves_out(self, step: int, norm, guard: LossGuard, accelerator, total: torch.Tensor) -> bool:
        """Whether this step is not to be made.

        Args:
            step: counted from 1. norm: of its gradients. guard: which has its losses. total: Trainer's sum of losses,
                which gets the value from before the step where it is left out.

        Raises:
            UserError: the step is bad, and training.bad_step is stop, or so many were in a row.
        """
        if norm is None:  # DeepSpeed knows none before its first step
            return False
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not self.decides:
            self._waiting.append((step, norm))
            return False
        self._made += 1
        loss, norm = self._of_all_processes(guard.loss_of(step), norm, accelerator)
        why = self.what_is_wrong(loss, norm, scaled=accelerator.scaler is not None)
        if why is None:
            self.in_a_row = 0
            self._watch(step, norm, accelerator.is_main_process)
            self.losses.append(loss)
            return False
        rows = guard.rows_of(step, accelerator)
        self.in_a_row += 1
        self._made, self._left_out = self._made - 1, self._left_out + 1
        if not self.skips or self.in_a_row > self.section.max_bad_steps:
            number = f", bad step number {self.in_a_row} in a row" if self.skips else ""
            raise UserError(f"{why} at step {step} ({words_of_rows(rows)}){number}; {guard.advice(skips=self.skips)}")
        self.skipped += 1
        self.reports = [*self.reports, {"step": step, "why": why, "rows": rows[:16]}][:REPORTED]
        if accelerator.is_main_process:
            say(f"step {step} is left out: {why} ({words_of_rows(rows)}); {self.skipped} so far")
        guard.forget(step)
        total.copy_(self._before[1])
        for each, before in self._before[2]:
            each.sums = before
        forget_counts()
        return True

    def _of_all_processes(self, loss: torch.Tensor, norm, accelerator) -> tuple[float, float]:
        """(mean of the processes' losses, largest norm): the same numbers in each process."""
        norm = torch.as_tensor(norm, dtype=torch.float32, device=loss.device)
        pair = torch.stack([loss.float(), norm.reshape(())])[None]
        pairs = accelerator.gather(pair).cpu().double()
        return pairs[:, 0].mean().item(), pairs[:, 1].max().item()

    def what_is_wrong(self, loss: float, norm: float, scaled: bool = False) -> str | None:
        """Why a step is bad, or None. scaled: of fp16, whose scaler itself leaves out infinite gradients."""
        section = self.section
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return None if scaled else f"the gradient norm is {norm}"
        for value, usual, most, what in (
            (loss, self.losses, section.loss_spike, "loss"),
            (norm, self.norms, section.grad_norm_spike, "gradient norm"),
        ):
            times = times_the_median(value, usual)
            if most is not None and times is not None and times > most:
                return f"the {what} {value:.4g} is {times:.3g} times the median of the last {len(usual)} steps"
        return None

    def _watch(self, step: int, norm: float, speaks: bool) -> None:
        most, times = self.section.grad_norm_warning, times_the_median(norm, self.norms)
        if most is not None and times is not None and times > most:
            self.warned += 1
            if speaks and self.warned <= SAID:
                last = "; the next such steps are only counted, in run.json" if self.warned == SAID else ""
                say(
                    f"step {step}: the gradient norm {norm:.4g} is {times:.3g} times the median of the last "
                    f"{len(self.norms)} steps{last}"
                )
        if math.isfinite(norm):
            self.norms.append(norm)

    # ---- the log

    def collect(self, logs: dict, speaks: bool) -> None:
        """Look at the norms since the last log, and correct the log's loss, a mean over all steps, where some of them
        were left out; where all were, there is none."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            norms = torch.stack([torch.as_tensor(norm).detach().float().reshape(()) for _, norm in waiting]).tolist()
            for (step, _), norm in zip(waiting, norms):
                self._watch(step, norm, speaks)
        if self._left_out:
            if self._made:
                logs["loss"] *= (self._made + self._left_out) / self._made
            else:
                del logs["loss"]
        if self.skipped:
            logs["skipped_steps"] = self.skipped
        self._made = self._left_out = 0

    def facts(self) -> dict:
        """What run.json holds of it; {} where nothing happened."""
        found = {"skipped_steps": {"number": self.skipped, "steps": self.reports}} if self.skipped else {}
        return found | ({"grad_norm_warnings": self.warned} if self.warned else {})


def times_the_median(value: float, usual: deque) -> float | None:
    """The multiple of the usual that a value is; None where too little is known, or what is usual is zero."""
    if len(usual) < ENOUGH:
        return None
    median = statistics.median(usual)
    return value / median if median > 0 else None
