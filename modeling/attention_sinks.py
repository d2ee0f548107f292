"""Attention sinks: each head learns one score beside those of the tokens, whose share of attention carries no value."""

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import Attention, paged_eager_attention

CHANNELS = 8  # added to each head: kernels want multiples of 16 bytes


def sdpa_with_sinks(module, query, key, value, attention_mask, scaling, s_aux, **kwargs) -> tuple:
    """sdpa with one more key, in front of all others: its score is the sink and its value 0.

    Queries hold the sink in one more channel, which is 0 in all keys but that one; CHANNELS are added in all. Without
    a mask a query is added in front, too, so that the causality flag still matches queries and keys.

    query (B, H, T, K); key, value (B, G, S, K); s_aux (H,). Returns the output (B, T, H, K) and no weights.
    """
    size, length = value.shape[-1], query.shape[2]
    sinks = (s_aux / scaling).to(query.dtype).view(1, -1, 1, 1).expand(*query.shape[:3], 1)
    query = pad(torch.cat((query, sinks), dim=-1), (0, CHANNELS - 1))
    key, value = (pad(x, (0, CHANNELS, 1, 0)) for x in (key, value))
    is_first = torch.zeros(key.shape[2:], dtype=key.dtype, device=key.device)
    is_first[0, -CHANNELS] = 1
    key = key + is_first
    if attention_mask is not None:
        attention_mask = pad(attention_mask, (1, 0), value=1 if attention_mask.dtype == torch.bool else 0)
    elif length > 1:
        query = pad(query, (0, 0, 1, 0))
    run = ALL_ATTENTION_FUNCTIONS["sdpa"]
    out_BTHK, _ = run(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return out_BTHK[:, -length:, :, :size], None


class SinkAttention(Attention):
    """Weights exp(s_j) / (exp(sink) + sum of exp(s_k)): a head may attend to nothing (OpenAI 2025, gpt-oss).

    Xiao et al. 2024, section 3, saw that heads that need no token attend to the first ones. The sink has no position,
    no value and no place in a cache; every query of every document has it.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.sinks = nn.Parameter(torch.empty(config.num_attention_heads))

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.normal_(self.sinks, mean=0.0, std=std)

    def backend_arguments(self) -> dict:
        return super().backend_arguments() | {"s_aux": self.sinks}

    def own_backend(self, **kwargs):
        """transformers' sdpa drops sinks, also with a paged cache; flex attention and our backend take them."""
        name = self.implementation()
        if name.startswith("paged|"):
            return paged_eager_attention
        return sdpa_with_sinks if name == "sdpa" else None
