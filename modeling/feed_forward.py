"""Feed-forward layers. Each maps (..., D) to (..., D), position by position.

`channels` (None: the config's `intermediate_size`) is the width between.
"""

from torch import nn
from transformers.activations import ACT2FN


class MLP(nn.Module):
    """down(act(up(x))), Vaswani et al. 2017, eq. 2, with any activation of transformers."""

    def __init__(self, config, channels: int | None = None):
        super().__init__()
        channels = config.intermediate_size if channels is None else channels
        self.up_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.down_proj = nn.Linear(channels, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD):
        return self.down_proj(self.act_fn(self.up_proj(x_BTD)))


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), Shazeer 2020, eq. 6; SwiGLU with hidden_act='silu'."""

    def __init__(self, config, channels: int | None = None):
        super().__init__()
        channels = config.intermediate_size if channels is None else channels
        self.gate_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.down_proj = nn.Linear(channels, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD):
        return self.down_proj(self.act_fn(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


FEED_FORWARDS = {"mlp": MLP, "glu": GatedMLP}
