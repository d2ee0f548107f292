"""Attention whose keys and values are computed from one narrow vector per token, its latent, which the cache holds.

Shapes as in attention.py, and C channels of a latent, N and R channels of a query or key without and with a position,
V channels of a value.
"""

import math

import torch
from torch import nn

from .attention import Attention
from .block import RMSNorm
from .positions import rotate

LATENT_EPS = 1e-6  # eps of the latents' norms: in transformers' classes it does not follow the config


class LatentAttention(Attention):
    """Keys [W_k c_s, r_s] and values W_v c_s of a latent c_s = norm(W_c x_s): DeepSeek-AI 2024 (DeepSeek-V2), eq. 9-18.

    r_s = rotation(W_r x_s) is shared by all heads, and the only part of a key that depends on its position; queries
    are [q_t, rotation(q'_t)], with `q_lora_rank` computed from a latent of their own. With `rope_interleave` rotated
    pairs of channels are (0, 1), (2, 3), .., as in DeepSeek's weights; otherwise (0, R/2), (1, R/2 + 1), ..

    A cache holds c in place of keys and r in place of values, as with transformers' classes: C + R numbers per token.
    """

    def __init__(self, config, layer_idx: int):
        nn.Module.__init__(self)
        self.config, self.layer_idx = config, layer_idx
        self.cross_attention, self.is_causal, self.num_key_value_groups = False, config.is_causal, 1
        self.key_sizes = [config.qk_nope_head_dim, config.qk_rope_head_dim]
        self.latent_sizes = [config.kv_lora_rank, config.qk_rope_head_dim]
        self.value_size, self.head_dim = config.v_head_dim, sum(self.key_sizes)
        self.scaling = config.attention_multiplier
        if self.scaling is None:
            self.scaling = self.head_dim**-0.5 * mscale(config, layer_idx) ** 2
        softcap = config.attn_logit_softcapping
        self.backend_kwargs = {} if softcap is None else {"softcap": softcap}
        width, heads, bias = config.hidden_size, config.num_attention_heads, config.attention_bias
        if config.q_lora_rank is None:
            queries = self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, config.q_lora_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, eps=LATENT_EPS)
            queries = self.q_b_proj = nn.Linear(config.q_lora_rank, heads * self.head_dim, bias=False)
        queries.init_gain = self.head_dim**-0.5 / self.scaling
        self.kv_a_proj_with_mqa = nn.Linear(width, sum(self.latent_sizes), bias=bias)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, eps=LATENT_EPS)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, heads * (self.key_sizes[0] + self.value_size), bias=False)
        self.o_proj = nn.Linear(heads * self.value_size, width, bias=config.attention_out_bias)
        self.o_proj.writes_residual = True

    def queries(self, hidden_states):
        """(B, T, D) -> (B, H, T, N + R)."""
        if self.config.q_lora_rank is None:
            return self.heads(self.q_proj(hidden_states))
        return self.heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states))))

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, past_key_values=None, **kwargs
    ) -> tuple:
        """As `Attention.forward`."""
        q_BHTN, q_BHTR = self.queries(hidden_states).split(self.key_sizes, dim=-1)
        c_BSC, r_BSR = self.kv_a_proj_with_mqa(hidden_states).split(self.latent_sizes, dim=-1)
        # With an axis for one head: caches expect four axes.
        c_B1SC, r_B1SR = self.kv_a_layernorm(c_BSC).unsqueeze(1), r_BSR.unsqueeze(1)
        if position_embeddings is not None:
            q_BHTR, r_B1SR = (self.rotated(x, position_embeddings) for x in (q_BHTR, r_B1SR))
        if past_key_values is not None:
            c_B1SC, r_B1SR = past_key_values.update(c_B1SC, r_B1SR, self.layer_idx)
        k_BHSN, v_BHSV = self.keys_and_values(c_B1SC)
        k_BHSK = torch.cat((k_BHSN, r_B1SR.expand(-1, k_BHSN.shape[1], -1, -1)), dim=-1)
        q_BHTK = torch.cat((q_BHTN, q_BHTR), dim=-1)
        out_BTHV, weights = self.attend(q_BHTK, k_BHSK, v_BHSV, attention_mask, **kwargs)
        return self.o_proj(out_BTHV.flatten(-2)), weights

    def keys_and_values(self, c_B1SC) -> tuple:
        """Latents (B, 1, S, C) -> (B, H, S, N) and (B, H, S, V)."""
        sizes = [self.key_sizes[0], self.value_size]
        both_BHSX = self.kv_b_proj(c_B1SC[:, 0]).unflatten(-1, (-1, sum(sizes))).transpose(1, 2)
        return both_BHSX.split(sizes, dim=-1)

    def rotated(self, x_BHTR, position_embeddings):
        if self.config.rope_interleave:
            x_BHTR = x_BHTR.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return rotate(x_BHTR, *position_embeddings)


def mscale(config, layer_idx: int) -> float:
    """YaRN's factor on queries and on keys (Peng et al. 2023, eq. 22), which DeepSeek folds into the scores' scale."""
    rope = config.rope_parameters or {}
    rope = rope.get(config.layer_types[layer_idx]) or rope
    strength = rope.get("mscale_all_dim", 0) if rope.get("rope_type", "default") != "default" else 0
    return 0.1 * strength * math.log(rope["factor"]) + 1.0 if strength and rope["factor"] > 1 else 1.0
