"""A gated delta net in which each channel of the keys decays at its own rate. Shapes as in attention_delta.py."""

import torch
from torch import nn

from .attention_delta import GatedDeltaNet, softplus


class KimiDeltaAttention(GatedDeltaNet):
    """S_t = S_{t-1} Diag(a_t) (1 - b_t k_t k_t^T) + b_t v_t k_t^T: Kimi Team 2025 (Kimi Linear), eq. 1.

    a_t = exp(-exp(A_log) softplus(f_b(f_a(x_t)) + dt_bias)) has a number for each channel of a key, through a
    bottleneck of a key's channels; the output's gate is sigmoid(g_b(g_a(x))), through one of a value's channels.
    """

    def build_gates(self, width: int, values: int) -> None:
        keys = self.value_heads * self.key_size
        self.f_a_proj, self.g_a_proj = (nn.Linear(width, n, bias=False) for n in (self.key_size, self.value_size))
        self.b_proj = nn.Linear(width, self.value_heads, bias=False)
        self.f_b_proj = nn.Linear(self.key_size, keys, bias=False)
        self.g_b_proj = nn.Linear(self.value_size, values, bias=False)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(self.value_heads)), nn.Parameter(torch.empty(keys))

    def fades(self, hidden_states, wide: torch.dtype):
        """ln a_t, (B, T, D) -> (B, T, H, K)."""
        steps = self.f_b_proj(self.f_a_proj(hidden_states.to(self.f_a_proj.weight.dtype))).to(wide)
        steps = (steps + self.dt_bias.to(wide)).unflatten(-1, (-1, self.key_size))
        return -self.A_log.to(wide).exp()[:, None] * softplus(steps)

    def output_gate(self, hidden_states):
        return self.g_b_proj(self.g_a_proj(hidden_states)).sigmoid()
