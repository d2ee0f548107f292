"""Scaling of queries and keys after their rotation: a norm without weights, and a temperature."""

import torch
from torch import nn
from torch.nn.functional import rms_norm

from .traits import POSITION_SCHEMES


class QueryAndKeyScales(nn.Module):
    """Both as in Llama 4. No parameters.

    `qk_l2_norm`, in layers with a rotation: each head's query and key is divided by the root of its mean square.
    `attn_temperature_tuning`, in layers without positions: a query at position p is multiplied by
    1 + attn_scale * log(1 + floor((p + 1) / floor_scale)), so that attention over many keys stays sharp (Nakanishi
    2025, Scalable-Softmax). Positions are the `position_ids`, which restart at each document of packed rows.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        rotates = POSITION_SCHEMES[config.position_encoding].acts_on == "rotation"
        rotates = rotates and (config.no_rope_layers is None or bool(config.no_rope_layers[layer_idx]))
        self.normalises, self.eps = config.qk_l2_norm and rotates, config.norm_eps
        self.tunes, self.floor = config.attn_temperature_tuning and not rotates, config.floor_scale
        self.strength = config.attn_scale

    def forward(self, q_BHTK, k_BGSK, v_BGSK, position_ids, **kwargs) -> tuple:
        """See traits.Adjustment; position_ids: (B or 1, T)."""
        if self.normalises:
            q_BHTK, k_BGSK = (self.normalised(x) for x in (q_BHTK, k_BGSK))
        if self.tunes:
            steps_B1T1 = torch.floor((position_ids[:, None, :, None].float() + 1) / self.floor)
            q_BHTK = (q_BHTK * (torch.log1p(steps_B1T1) * self.strength + 1)).to(q_BHTK.dtype)
        return q_BHTK, k_BGSK, v_BGSK, kwargs | {"position_ids": position_ids}

    def normalised(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        return rms_norm(x.to(wide), x.shape[-1:], eps=self.eps).to(x.dtype)
