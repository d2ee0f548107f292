"""A gated feed-forward whose two factors are clamped, so that no product of them grows without bound."""

import torch

from .block import GatedMLP


def clamped_glu(gate, up, config):
    """(up + 1) * gate * sigmoid(alpha * gate), gate at most the limit and up within it (OpenAI 2025, gpt-oss)."""
    gate, up = gate.clamp(max=config.swiglu_limit), up.clamp(-config.swiglu_limit, config.swiglu_limit)
    return (up + 1) * gate * torch.sigmoid(config.swiglu_alpha * gate)


class ClampedMLP(GatedMLP):
    """down(clamped_glu(gate(x), up(x)))."""

    def __init__(self, config, channels: int | None = None):
        super().__init__(config, channels)
        self.config = config

    def forward(self, x_BTD) -> tuple:
        return self.down_proj(clamped_glu(self.gate_proj(x_BTD), self.up_proj(x_BTD), self.config)), None
