"""State spaces as in Mamba-2: a delta net that writes without correcting. Shapes as in attention_delta.py."""

import torch
from torch import nn
from torch.nn.functional import rms_norm
from transformers import initialization as init

from .attention_delta import GatedDeltaNet, softplus
from .block import RMSNorm


class StateSpace(GatedDeltaNet):
    """S_t = a_t S_{t-1} + d_t x_t B_t^T, y_t = S_t C_t + D x_t: Dao and Gu 2024 (Mamba-2), eq. 1 and section 7.

    In the words of attention (section 4): C is `q_proj`, B `k_proj`, x `v_proj`; each head of C and B serves a group of
    heads of x. d_t = softplus(a_proj(h_t) + dt_bias) writes, a_t = exp(-exp(A_log) d_t) forgets. The output is gated by
    silu(g_proj(h)), then normed in each group.
    """

    mixed = ("v_proj", "k_proj", "q_proj")
    corrects = False
    instead_of_weights = "a state space has no weights of single tokens: all before one are a matrix of a fixed size"

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.conv_bias = nn.Parameter(torch.empty(self.conv_weight.shape[0]))
        self.norm = RMSNorm(self.value_heads * self.value_size, eps=config.linear_norm_eps)

    def build_gates(self, width: int, values: int) -> None:
        self.g_proj = nn.Linear(width, values, bias=False)
        self.a_proj = nn.Linear(width, self.value_heads, bias=False)
        self.A_log, self.dt_bias, self.D = (nn.Parameter(torch.empty(self.value_heads)) for _ in range(3))

    def init_own_weights(self, std: float, residual_std: float) -> None:
        super().init_own_weights(std, residual_std)
        init.zeros_(self.conv_bias)
        init.ones_(self.D)

    def rates(self, hidden_states, wide: torch.dtype) -> tuple:
        steps = self.a_proj(hidden_states.to(self.a_proj.weight.dtype)).to(wide) + self.dt_bias.to(wide)
        steps = softplus(steps)
        return (-self.A_log.to(wide).exp() * steps).unsqueeze(-1), steps

    def directions(self, q, k) -> tuple:
        return q, k

    def finish(self, out_BTHV, v_BTHV, hidden_states):
        gate = self.output_gate(hidden_states).to(out_BTHV.dtype)
        out = (out_BTHV + self.D.to(out_BTHV.dtype)[:, None] * v_BTHV).flatten(-2) * gate
        groups = out.unflatten(-1, (self.key_heads, -1))
        out = rms_norm(groups, groups.shape[-1:], eps=self.norm.eps).flatten(-2)
        return (out * self.norm.weight.to(out.dtype)).to(hidden_states.dtype)
