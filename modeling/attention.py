"""Multi-head, multi-query and grouped-query attention over transformers' attention backends.

Shapes: B batch, T query length, S key length, H query heads, G key/value heads, K head size, D hidden size.
"""

from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .positions import rotate


def eager_attention(
    module, query, key, value, attention_mask, scaling, dropout=0.0, position_bias=None, **kwargs
) -> tuple:
    """softmax(q k^T * scaling + bias + mask) v, Vaswani et al. 2017, eq. 1: the readable reference backend.

    query (B, H, T, K); key, value (B, G, S, K); attention_mask additive (B, 1, T, S) or None.
    Returns the output (B, T, H, K) and the weights (B, H, T, S).
    """
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    for extra in (position_bias, attention_mask):
        scores = scores if extra is None else scores + extra
    weights = nn.functional.softmax(scores.float(), dim=-1).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    """Self-attention. `num_key_value_heads` sets its kind: as many as heads (MHA), fewer (GQA), one (MQA)."""

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, past_key_values=None, **kwargs
    ) -> tuple:
        """(B, T, D) -> (B, T, D) and the attention weights (B, H, T, S), or None where the backend keeps none."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        q_BHTK, k_BGTK, v_BGTK = (
            projection(hidden_states).view(heads).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if position_embeddings is not None:
            q_BHTK, k_BGTK = rotate(q_BHTK, *position_embeddings), rotate(k_BGTK, *position_embeddings)
        if past_key_values is not None:
            k_BGTK, v_BGTK = past_key_values.update(k_BGTK, v_BGTK, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        out_BTHK, weights = attend(
            self, q_BHTK, k_BGTK, v_BGTK, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs
        )
        return self.o_proj(out_BTHK.reshape(*hidden_states.shape[:-1], -1)), weights
