"""Feed-forward layers. Each maps (..., D) to (..., D), position by position, and returns (output, None).

The second value is what a layer with experts has to tell about its routing: see experts.py.

`channels` (None: the config's `intermediate_size`) is the width between.
"""

from torch import nn
from transformers.activations import ACT2FN

from .traits import implementation


class MLP(nn.Module):
    """down(act(up(x))), Vaswani et al. 2017, eq. 2, with any activation of transformers."""

    def __init__(self, config, channels: int | None = None):
        super().__init__()
        channels = config.intermediate_size if channels is None else channels
        self.up_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.down_proj = nn.Linear(channels, config.hidden_size, bias=config.mlp_bias)
        self.down_proj.writes_residual = True
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD) -> tuple:
        return self.down_proj(self.act_fn(self.up_proj(x_BTD))), None


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), Shazeer 2020, eq. 6; SwiGLU with hidden_act='silu'."""

    def __init__(self, config, channels: int | None = None):
        super().__init__()
        channels = config.intermediate_size if channels is None else channels
        self.gate_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.down_proj = nn.Linear(channels, config.hidden_size, bias=config.mlp_bias)
        self.down_proj.writes_residual = True
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD) -> tuple:
        return self.down_proj(self.act_fn(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)), None


FEED_FORWARDS = {"mlp": MLP, "glu": GatedMLP}


def build_feed_forward(config, layer_idx: int) -> nn.Module:
    """The feed-forward of a layer: dense, or experts."""
    if config.mlp_kinds[layer_idx] == "sparse":
        return implementation("feed forward", "sparse", module="experts")(config)
    return FEED_FORWARDS[config.mlp_type](config)
