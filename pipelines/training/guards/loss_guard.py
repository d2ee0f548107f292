"""The loss guard stops a run whose loss is NaN or infinite, and names the step and the rows."""

from collections import deque
from pathlib import Path

import torch
from accelerate.utils import gather_object

from ...errors import UserError
from ...storage.checkpoints import list_checkpoints
from ..engines.mesh import local


class LossGuard:
    """Keeps the losses of recent micro-batches on the device, with their step and the sample ids of their rows.

    Reading a loss makes the host wait for the device, so losses are only read when metrics are logged and before a
    checkpoint is written.
    """

    def __init__(self, output_dir: str | Path):
        self.output_dir, self.recent = Path(output_dir), deque(maxlen=4096)

    def watch(self, step: int, loss: torch.Tensor, rows: "list[int] | torch.Tensor") -> None:
        self.recent.append((step, loss.detach(), rows))

    def check(self) -> None:
        """Raise UserError for the first step since the last check whose loss was NaN or infinite."""
        if not self.recent:
            return
        finite = torch.stack([loss for _, loss, _ in self.recent]).isfinite().tolist()
        for is_finite, (step, loss, rows) in zip(finite, self.recent):
            if not is_finite:
                raise UserError(f"the loss is {loss.item()} at step {step} ({words_of_rows(rows)}); {self.advice()}")
        self.recent.clear()

    def check_weights(self, model: torch.nn.Module, step: int) -> None:
        """Raise UserError if weights are NaN or infinite; called before they are saved."""
        for name, parameter in model.named_parameters():
            if not torch.isfinite(local(parameter)).all():
                raise UserError(f"the weights of {name} are not finite after step {step}; {self.advice()}")

    def loss_of(self, step: int) -> torch.Tensor:
        """The sum of the losses of a step's micro-batches in this process, on its device."""
        return torch.stack([loss for number, loss, _ in self.recent if number == step]).sum()

    def rows_of(self, step: int, accelerator) -> list[int]:
        """A step's rows, from all processes, in micro-batches whose loss is not finite; if all are finite, all rows."""
        mine = [(bool(loss.isfinite()), [int(row) for row in rows]) for n, loss, rows in self.recent if n == step]
        losses = gather_object(mine)
        bad = [row for finite, rows in losses if not finite for row in rows]
        return bad or [row for _, rows in losses for row in rows]

    def forget(self, step: int) -> None:
        """Drop the losses of a skipped step, which need not be finite."""
        self.recent = deque((entry for entry in self.recent if entry[0] != step), maxlen=self.recent.maxlen)

    def advice(self, skips: bool = False) -> str:
        checkpoints = list_checkpoints(self.output_dir)
        good = f"the last good checkpoint is {checkpoints[0]}" if checkpoints else "there is no checkpoint yet"
        way = "" if skips else ", or leave such steps out with training.bad_step=skip"
        return f"{good}; lower training.learning_rate or look at these rows, then train into another output_dir{way}"


def words_of_rows(rows: "list[int] | torch.Tensor") -> str:
    """`training rows 3, 17, ...`, for an error."""
    shown = f"{', '.join(str(int(row)) for row in rows[:16])}{', ...' if len(rows) > 16 else ''}"
    return f"training rows {shown or 'unknown'}"
