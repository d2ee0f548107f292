"""RMSNorm whose weights are kept as their distance from 1."""

import torch
from transformers import initialization as init

from .block import RMSNorm


class ZeroCenteredRMSNorm(RMSNorm):
    """x / sqrt(mean(x^2) + eps) * (1 + weight), Gemma Team 2024's code; Qwen3-Next's, too.

    Weight decay then pulls the factor to 1, and 16-bit weights hold factors near 1 with more digits.
    """

    def __init__(self, config, size: int):
        super().__init__(size, eps=config.norm_eps)

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.zeros_(self.weight)

    def forward(self, x):
        """(..., D) -> (..., D), in the input's dtype."""
        return super().forward(x, 1 + self.weight.to(torch.promote_types(self.weight.dtype, torch.float32)))
