"""Multi-head, multi-query and grouped-query attention over transformers' attention backends.

Shapes: B batch, T query length, S key length, H query heads, G key/value heads, K head size, D hidden size.
"""

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .normalization import build_norm
from .positions import rotate


def eager_attention(
    module, query, key, value, attention_mask, scaling, dropout=0.0, position_bias=None, softcap=None, **kwargs
) -> tuple:
    """softmax(q k^T * scaling + bias + mask) v, Vaswani et al. 2017, eq. 1: the readable reference backend.

    With `softcap` the scaled scores s become softcap * tanh(s / softcap) first (Gemma Team 2024, section 2).

    query (B, H, T, K); key, value (B, G, S, K); attention_mask additive (B, 1, T, S) or None.
    Returns the output (B, T, H, K) and the weights (B, H, T, S).
    """
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for extra in (position_bias, attention_mask):
        scores = scores if extra is None else scores + extra
    weights = nn.functional.softmax(scores.float(), dim=-1).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    """Self-attention with `num_key_value_heads` key/value heads: as many as heads (MHA), fewer (GQA), one (MQA).

    `qk_norm` normalises each query and key head before the rotation (Henry et al. 2020; per head as in Qwen3).
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5 if config.attention_multiplier is None else config.attention_multiplier
        sliding = config.layer_types[layer_idx] == "sliding_attention"
        # What backends need beside the mask, passed only where set: flash kernels window by themselves, sdpa refuses
        # a softcap.
        self.backend_kwargs = {"sliding_window": config.sliding_window} if sliding else {}
        if config.attn_logit_softcapping is not None:
            self.backend_kwargs["softcap"] = config.attn_logit_softcapping
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_out_bias)
        self.q_norm = build_norm(config, self.head_dim) if config.qk_norm else None
        self.k_norm = build_norm(config, self.head_dim) if config.qk_norm else None

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, past_key_values=None, **kwargs
    ) -> tuple:
        """(B, T, D) -> (B, T, D) and the attention weights (B, H, T, S), or None where the backend keeps none."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        q_BTHK = self.q_proj(hidden_states).view(heads)
        k_BTGK = self.k_proj(hidden_states).view(heads)
        v_BGTK = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        if self.q_norm is not None:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        q_BHTK, k_BGTK = q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2)
        if position_embeddings is not None:
            q_BHTK, k_BGTK = rotate(q_BHTK, *position_embeddings), rotate(k_BGTK, *position_embeddings)
        if past_key_values is not None:
            k_BGTK, v_BGTK = past_key_values.update(k_BGTK, v_BGTK, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        out_BTHK, weights = attend(
            self,
            q_BHTK,
            k_BGTK,
            v_BGTK,
            attention_mask,
            scaling=self.scaling,
            dropout=dropout,
            **self.backend_kwargs,
            **kwargs,
        )
        return self.o_proj(out_BTHK.reshape(*hidden_states.shape[:-1], -1)), weights
