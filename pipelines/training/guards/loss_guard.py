"""The loss guard stops a run whose loss is NaN or infinite, and names the step and the rows."""

from collections import deque
from pathlib import Path

import torch

from ...errors import UserError
from ...storage.checkpoints import list_checkpoints
from ..engines.mesh import local


class LossGuard:
    """Keeps the losses of recent micro-batches on the device, with their step and the sample ids of their rows.

    Reading a loss makes the host wait for the device, so losses are only read when metrics are logged and before a
    checkpoint is written.
    """

    def __init__(self, output_dir: str | Path, remember: int = 4096):
        self.output_dir, self.recent = Path(output_dir), deque(maxlen=remember)

    def watch(self, step: int, loss: torch.Tensor, rows: "list[int] | torch.Tensor") -> None:
        self.recent.append((step, loss.detach(), rows))

    def check(self) -> None:
        """Raise UserError naming the first step since the last check whose loss was NaN or infinite."""
        if not self.recent:
            return
        finite = torch.stack([loss for _, loss, _ in self.recent]).isfinite().tolist()
        for is_finite, (step, loss, rows) in zip(finite, self.recent):
            if not is_finite:
                shown = f"{', '.join(str(int(row)) for row in rows[:16])}{', ...' if len(rows) > 16 else ''}"
                where = f"step {step} (training rows {shown or 'unknown'})"
                raise UserError(f"the loss is {loss.item()} at {where}; {self.advice()}")
        self.recent.clear()

    def check_weights(self, model: torch.nn.Module, step: int) -> None:
        """Raise UserError for weights that are NaN or infinite, before they are saved."""
        for name, parameter in model.named_parameters():
            if not torch.isfinite(local(parameter)).all():
                raise UserError(f"the weights of {name} are not finite after step {step}; {self.advice()}")

    def advice(self) -> str:
        checkpoints = list_checkpoints(self.output_dir)
        good = f"the last good checkpoint is {checkpoints[0]}" if checkpoints else "there is no checkpoint yet"
        return f"{good}; lower training.learning_rate or look at these rows, then train into another output_dir"
