"""The step guard checks each optimizer step before it is made: bad steps stop the run or are skipped.

A step is bad if its loss or gradient norm is NaN or infinite, or more than a set multiple of the median of the last
steps (spikes hardly move a median). Large gradient norms that do not make a step bad are reported.
"""

import json
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from anyformer.modeling.experts_bias import forget_counts
from transformers import TrainerState

from ...errors import UserError
from ...recipes.schema import TrainingSection
from ...storage.atomic import write_atomically
from ...storage.checkpoints import step_of
from ...words import say
from .loss_guard import LossGuard, words_of_rows

FILE = "step_guard.json"
REMEMBERED = 128  # last steps over which the median is taken
ENOUGH = 16  # steps that a median needs
REPORTED = 100  # skipped steps that run.json describes; later ones are only counted
SAID = 8  # warnings about large gradient norms that are printed; a run whose loss nears zero has dozens


@dataclass(frozen=True)
class Verdict:
    """What the guard says of a step. why: what is wrong with it; None: nothing. rows: those of a bad step."""

    step: int
    loss: float
    norm: float
    why: str | None = None
    rows: list[int] = field(default_factory=list)


class StepGuard:
    """Judges each step before the optimizer makes it; all processes get the same verdict.

    Args:
        section: its bad_step, max_bad_steps, loss_spike, grad_norm_spike and grad_norm_warning are used.
        losses: holds the losses of the step.
        sums: objects with an attribute `sums`, to which a step adds, and which they replace and never change in place.

    Attributes: `skipped` is the number of skipped steps, `reports` describes them. They are saved in checkpoints with
    the last losses and norms, so that a resumed run decides the same. `warned` counts the warnings about gradient norms
    since the run was begun or resumed.
    """

    def __init__(self, section: TrainingSection, losses: LossGuard | None = None, sums: Sequence = ()):
        self.section, self.skips, self._guard, self._sums = section, section.bad_step == "skip", losses, sums
        self.losses: deque[float] = deque(maxlen=REMEMBERED)
        self.norms: deque[float] = deque(maxlen=REMEMBERED)
        self.skipped = self.warned = self.in_a_row = 0
        self.reports: list[dict] = []
        self._waiting: list[tuple[int, torch.Tensor | float]] = []  # (step, norm) not yet read from the device
        self._made = self._left_out = 0  # steps since the last log
        self._begun_at = 0  # the step of the checkpoint that the run goes on from
        self._before: tuple[int, torch.Tensor, list] | None = None

    @property
    def decides(self) -> bool:
        """Whether each step is checked before it is made, for which the host has to wait for the device."""
        return self.skips or self.section.loss_spike is not None or self.section.grad_norm_spike is not None

    def begin(self, checkpoint: str | Path | None) -> None:
        """Called when training begins; loads the state from the checkpoint of a resumed run."""
        self._begun_at = 0 if checkpoint is None else step_of(Path(checkpoint))
        file = None if checkpoint is None else Path(checkpoint) / FILE
        if file is None or not file.is_file():
            return
        saved = json.loads(file.read_text(encoding="utf-8"))
        self.losses.extend(saved["losses"])
        self.norms.extend(saved["norms"])
        self.skipped, self.in_a_row, self.reports = saved["skipped"], saved["in_a_row"], saved["reports"]

    def save(self, folder: Path) -> None:
        """Write the state for the next decisions into a checkpoint's folder, if this guard decides anything."""
        if self.decides:
            saved = {name: list(getattr(self, name)) for name in ("losses", "norms", "reports")}
            saved |= {"skipped": self.skipped, "in_a_row": self.in_a_row}
            write_atomically(folder / FILE, json.dumps(saved))

    # ---- a step

    def remember(self, step: int, total: torch.Tensor) -> None:
        """Remember the sums since the last log before a step adds to them. total: Trainer's sum of losses."""
        if self.decides and (self._before is None or self._before[0] != step):
            self._before = step, total.clone(), [each.sums for each in self._sums]

    def judge(self, step: int, norm, accelerator) -> Verdict | None:
        """The verdict on a step with this norm of its gradients; None where steps are not judged one by one."""
        if norm is None:  # DeepSpeed has none before its first step
            return None
        if not self.decides:
            self._waiting.append((step, norm))
            return None
        loss, norm = self._of_all_processes(self._guard.loss_of(step), norm, accelerator)
        why = self.what_is_wrong(loss, norm, scaled=accelerator.scaler is not None)
        return Verdict(step, loss, norm, why, [] if why is None else self._guard.rows_of(step, accelerator))

    def count(self, verdict: Verdict, speaks: bool) -> None:
        """Count a judged step, and say what is wrong with it.

        Raises UserError for a bad one if training.bad_step is stop, or max_bad_steps in a row have been skipped.
        """
        step, why = verdict.step, verdict.why
        if why is None:
            self.in_a_row = 0
            self._made += 1
            self._watch(step, verdict.norm, speaks)
            self.losses.append(verdict.loss)
            return
        self.in_a_row += 1
        self._left_out += 1
        words = words_of_rows(verdict.rows)
        if not self.skips or self.in_a_row > self.section.max_bad_steps:
            number = f", bad step number {self.in_a_row} in a row" if self.skips else ""
            raise UserError(f"{why} at step {step} ({words}){number}; {self._guard.advice(skips=self.skips)}")
        self.skipped += 1
        self.reports = [*self.reports, {"step": step, "why": why, "rows": verdict.rows[:16]}][:REPORTED]
        if speaks:
            say(f"step {step} is left out: {why} ({words}); {self.skipped} so far")

    def undo(self, step: int, total: torch.Tensor) -> None:
        """Take back what a step that is left out has added to all sums. total: Trainer's sum of losses."""
        self._guard.forget(step)
        total.copy_(self._before[1])
        for each, before in zip(self._sums, self._before[2]):
            each.sums = before
        forget_counts()

    def _of_all_processes(self, loss: torch.Tensor, norm, accelerator) -> tuple[float, float]:
        """(mean of the processes' losses, their largest norm), the same in all processes."""
        norm = torch.as_tensor(norm, dtype=torch.float32, device=loss.device)
        pair = torch.stack([loss.float(), norm.reshape(())])[None]
        pairs = accelerator.gather(pair).cpu().double()
        return pairs[:, 0].mean().item(), pairs[:, 1].max().item()

    def what_is_wrong(self, loss: float, norm: float, scaled: bool = False) -> str | None:
        """Why a step is bad, or None. scaled: whether fp16's loss scaler is used, which itself skips infinite norms."""
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

    def count_steps(self, logs: dict, state: TrainerState) -> None:
        """Add `mean_of_steps` to a log, before `collect`: the number of steps that its loss is a mean of, where these
        are fewer than the steps since the last log (for `train_loss`: than all), because others were skipped, or made
        before the run was resumed."""
        logged = [] if "train_loss" in logs else reversed(state.log_history)
        before = next((line["step"] for line in logged if "learning_rate" in line), 0)
        counted = state.global_step - max(before, self._begun_at) - self._left_out
        if 0 < counted < state.global_step - before:
            logs["mean_of_steps"] = counted

    def collect(self, logs: dict, speaks: bool) -> None:
        """Check the norms since the last log. If steps were skipped, correct the log's loss, which is a mean over all
        steps; if all were skipped, remove it."""
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
        """The entries of run.json about skipped steps and warnings; {} without any."""
        facts = {"skipped_steps": {"number": self.skipped, "steps": self.reports}} if self.skipped else {}
        return facts | ({"grad_norm_warnings": self.warned} if self.warned else {})


def times_the_median(value: float, usual: deque) -> float | None:
    """The value divided by the median of `usual`; None if there are too few of them, or their median is 0."""
    if len(usual) < ENOUGH:
        return None
    median = statistics.median(usual)
    return value / median if median > 0 else None
