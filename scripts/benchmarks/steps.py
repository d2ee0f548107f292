"""An optimizer step as an arm of a benchmark."""

import contextlib

import method
import torch

# Autocast rounds each product to 8 bits; our head stays in fp32 on CPUs without bf16.
BF16_TOLERANCE = 5e-3


class Step:
    """A model with its optimizer, on a fixed batch. Calling it takes a step and returns the loss."""

    def __init__(self, model, batch: dict, dtype: str):
        self.model, self.batch, self.dtype = model.train(), batch, dtype
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def forward_loss(self):
        return self.model(**self.batch).loss

    def loss(self, dtype: str | None = None):
        bf16 = (dtype or self.dtype) == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            return self.forward_loss()

    def __call__(self):
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def require_equal_losses(steps: dict[str, Step]) -> None:
    """Compare losses in fp32, then in the dtype that is timed."""
    with torch.no_grad():
        method.require_equal({name: step.loss("fp32").item() for name, step in steps.items()})
        if next(iter(steps.values())).dtype == "bf16":
            method.require_equal({name: step.loss().item() for name, step in steps.items()}, BF16_TOLERANCE)
