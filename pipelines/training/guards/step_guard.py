"""The step guard looks at each optimizer step before it is made: bad ones are left out, and too many end the run.

Bad is a step whose loss or gradient norm is NaN or infinite.
"""

import json
import math
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
REPORTED = 100  # skipped steps of which run.json says more than their number


class StepGuard:
    """Decides before the optimizer whether a step is made; all processes decide alike.

    Args:
        section: bad_step and max_bad_steps of it count.

    Attributes: `skipped` is the number of steps left out, `reports` what is known of them. They are saved in
    checkpoints, so that a resumed run decides the same. `decides`: whether each step is looked at before it is made,
    for which the host waits for the device.
    """

    def __init__(self, section: TrainingSection | None = None):
        self.section = section or TrainingSection()
        self.decides = self.section.bad_step == "skip"
        self.skipped = self.in_a_row = 0
        self.reports: list[dict] = []
        self._made = self._left_out = 0  # steps since the last log
        self._before: tuple[int, torch.Tensor, list] | None = None

    def begin(self, checkpoint: str | Path | None) -> None:
        """Training begins, at its beginning or at a checkpoint."""
        file = None if checkpoint is None else Path(checkpoint) / FILE
        if file is None or not file.is_file():
            return
        saved = json.loads(file.read_text(encoding="utf-8"))
        self.skipped, self.in_a_row, self.reports = saved["skipped"], saved["in_a_row"], saved["reports"]

    def save(self, folder: Path) -> None:
        """Write what the next decisions need into a checkpoint's folder; nothing where there are none."""
        if self.decides:
            saved = {"skipped": self.skipped, "in_a_row": self.in_a_row, "reports": self.reports}
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
            UserError: so many bad steps were in a row.
        """
        if norm is None or not self.decides:  # DeepSpeed knows none before its first step
            return False
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self._made += 1
        loss, norm = self._of_all_processes(guard.loss_of(step), norm, accelerator)
        why = self.what_is_wrong(loss, norm, scaled=accelerator.scaler is not None)
        if why is None:
            self.in_a_row = 0
            return False
        rows = guard.rows_of(step, accelerator)
        self.in_a_row += 1
        self._made, self._left_out = self._made - 1, self._left_out + 1
        if self.in_a_row > self.section.max_bad_steps:
            number = f"bad step number {self.in_a_row} in a row"
            raise UserError(f"{why} at step {step} ({words_of_rows(rows)}), {number}; {guard.advice(skips=True)}")
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
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        return f"the gradient norm is {norm}" if not math.isfinite(norm) and not scaled else None

    # ---- the log

    def collect(self, logs: dict) -> None:
        """Correct the log's loss, a mean over all steps, where some of them were left out; where all were, there is
        none."""
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
        return {"skipped_steps": {"number": self.skipped, "steps": self.reports}} if self.skipped else {}
