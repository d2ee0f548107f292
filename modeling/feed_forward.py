"""Feed-forward layers. Each maps (B, T, D) to (B, T, D), position by position."""

from torch import nn
from transformers.activations import ACT2FN


class MLP(nn.Module):
    """down(act(up(x))), Vaswani et al. 2017, eq. 2, with any activation of transformers."""

    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD):
        return self.down_proj(self.act_fn(self.up_proj(x_BTD)))


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), Shazeer 2020, eq. 6; SwiGLU with hidden_act='silu'."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD):
        return self.down_proj(self.act_fn(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


FEED_FORWARDS = {"mlp": MLP, "glu": GatedMLP}
