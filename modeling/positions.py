"""Position schemes: one small class each, and one registry row.

A scheme acts in one of three places, named by its class attribute `place`:
    "embedding"  forward(x, position_ids) -> (B or 1, T, D), added to the token embeddings
    "rotation"   forward(x, position_ids) -> (cos, sin), each (B or 1, T, R) for the R channel pairs of a head, rotating
                 queries and keys of every layer
    "bias"       forward(x, position_ids) -> (B, H, T, S), added to the attention scores of every layer
All are computed once per forward pass. Buffers are refilled in `_init_weights` (base.py): transformers builds models on
the meta device and hands non-persistent buffers back uninitialised. For rotary modules it does so itself.
"""

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update


class LearnedPositions(nn.Embedding):
    """One trained vector per position (Radford et al. 2018, section 3.1)."""

    place = "embedding"

    def __init__(self, config):
        super().__init__(config.max_position_embeddings, config.hidden_size)

    def forward(self, x_BTD, position_ids):
        if position_ids.shape[-1] > self.num_embeddings:
            raise ValueError(
                f"the input has {position_ids.shape[-1]} tokens, but max_position_embeddings={self.num_embeddings} "
                f"learned positions; shorten the input or train with more positions"
            )
        return super().forward(position_ids)


class RotaryEmbedding(nn.Module):
    """Rotation of channel pairs by an angle proportional to the position (Su et al. 2021, eq. 15 and 34).

    Frequencies of every `rope_type` but "default" come from transformers (linear, dynamic, yarn, llama3, ...).
    Class and attribute names follow transformers' rotary modules: its `_init_weights` refills the buffers by them.
    """

    place = "rotation"

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.rope_type = config.rope_parameters["rope_type"]
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        default = self.rope_type == "default"
        initialise = self.compute_default_rope_parameters if default else ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = initialise(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config, *args, **kwargs):
        """Return (theta^(-2i/R) for i < R/2, scaling 1.0) with R the rotated channels of a head.

        transformers 5.17 also passes a device, which later versions dropped; the buffers move with the module.
        """
        parameters = config.rope_parameters
        rotated = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
        return parameters["rope_theta"] ** -exponents, 1.0

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        return (angles.cos() * self.attention_scaling).to(x.dtype), (angles.sin() * self.attention_scaling).to(x.dtype)


def rotate(x_BHTK: torch.Tensor, cos_BTR: torch.Tensor, sin_BTR: torch.Tensor) -> torch.Tensor:
    """Rotate the first 2R channels of each head, channel i together with channel i + R; the rest pass through."""
    cos, sin = cos_BTR.unsqueeze(1), sin_BTR.unsqueeze(1)
    pairs = cos.shape[-1]
    first, second, passed = x_BHTK.split((pairs, pairs, x_BHTK.shape[-1] - 2 * pairs), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, passed), dim=-1)


POSITION_SCHEMES = {"none": None, "learned": LearnedPositions, "rotary": RotaryEmbedding}
PLACE_KWARGS = {"rotation": "position_embeddings", "bias": "position_bias"}


def build_positions(config) -> nn.Module | None:
    """The scheme that `config.position_encoding` names, or None for "none"."""
    scheme = POSITION_SCHEMES[config.position_encoding]
    return None if scheme is None else scheme(config)


def apply_positions(scheme, x_BTD, position_ids):
    """Let `scheme` act: return (embeddings, keyword arguments for every attention layer)."""
    if scheme is None:
        return x_BTD, {}
    if scheme.place == "embedding":
        return x_BTD + scheme(x_BTD, position_ids), {}
    return x_BTD, {PLACE_KWARGS[scheme.place]: scheme(x_BTD, position_ids)}
