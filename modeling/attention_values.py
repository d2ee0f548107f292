"""Value residual: the values of the first layer's attention, mixed into those of every other layer."""

import torch
from torch import nn
from transformers import initialization as init


class ValueResidual(nn.Module):
    """w1 v + w2 (v of the first layer); each layer learns w1 and w2, from 1/2: Zhou et al. 2024 (ResFormer).

    Both values are of the same tokens, so that a cache holds only the sum.
    """

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.empty(2))

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.constant_(self.weights, 0.5)

    def forward(self, v_BGSK, first_BGSK):
        """Values of this layer and of the first one -> their sum."""
        return self.weights[0] * v_BGSK + self.weights[1] * first_BGSK
