"""A gate on the output of attention, computed from the hidden states of the query's token."""

from torch import nn


class OutputGate(nn.Module):
    """attention(x) * sigmoid(W x), one factor for each head or for each channel of it: Qiu et al. 2025, eq. 5."""

    def __init__(self, config):
        super().__init__()
        size = config.head_dim if config.attention_gate == "channel" else 1
        self.gate_proj = nn.Linear(config.hidden_size, config.num_attention_heads * size, bias=config.attention_bias)

    def forward(self, out_BTHK, hidden_states):
        """Attention's output (B, T, H, K) and the hidden states (B, T, D) of its queries -> (B, T, H, K)."""
        gate = self.gate_proj(hidden_states).sigmoid()
        return out_BTHK * gate.view(*out_BTHK.shape[:-1], -1)
