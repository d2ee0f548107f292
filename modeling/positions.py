"""Position schemes: one small class each, for a row of traits.py, whose `acts_on` defines what forward returns.

All are computed once per forward pass. Buffers are refilled by `init_own_weights`, which base.py calls:
transformers builds models on the meta device and hands non-persistent buffers back uninitialised. It refills only
those of rotary modules itself.
"""

import copy

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update

from .traits import POSITION_SCHEMES


class RotaryEmbedding(nn.Module):
    """Rotation of channel pairs by an angle proportional to the position (Su et al. 2021, eq. 15 and 34).

    Frequencies of every `rope_type` but "default" come from transformers (linear, dynamic, yarn, llama3, ...).
    Class and attribute names follow transformers' rotary modules: its `_init_weights` refills the buffers by them.
    """

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

        Some callers also pass a device, which is not needed: the buffers move with the module.
        """  # transformers < 5.23
        parameters = config.rope_parameters
        rotated = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
        return parameters["rope_theta"] ** -exponents, 1.0

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x, position_ids):
        inv_freq = self.inv_freq.to(device=x.device, dtype=torch.float)
        # cos(-a) = cos(a) and sin(-a) = -sin(a): the layout `rotate` reads, in one step
        angles = position_ids[..., None].float() * torch.cat((-inv_freq, inv_freq))
        cos, sin = angles.cos(), angles.sin()
        if self.attention_scaling != 1:
            cos, sin = cos * self.attention_scaling, sin * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class RotaryEmbeddingPerLayerType(nn.Module):
    """One rotary embedding for each layer type, where `rope_parameters` is nested (a theta per kind of layer)."""

    def __init__(self, config):
        super().__init__()
        self.by_type = nn.ModuleDict()
        for layer_type in dict.fromkeys(config.layer_types):
            flat = copy.copy(config)
            flat.rope_parameters = config.rope_parameters[layer_type]
            self.by_type[layer_type] = RotaryEmbedding(flat)

    def forward(self, x, position_ids, layer_type):
        return self.by_type[layer_type](x, position_ids)


def rotary_positions(config) -> nn.Module:
    """One rotary embedding, or where `rope_parameters` is nested one for each layer type."""
    is_flat = "rope_type" in config.rope_parameters
    return RotaryEmbedding(config) if is_flat else RotaryEmbeddingPerLayerType(config)


def rotate(x_BHTK: torch.Tensor, cos_B1TR: torch.Tensor, sin_B1TR: torch.Tensor) -> torch.Tensor:
    """Rotate the first 2R channels of each head, channel i together with channel i + R; the rest pass through.

    cos and sin are RotaryEmbedding's, with an axis for the heads. In this layout a rotation is three operations.
    """
    size = cos_B1TR.shape[-1]
    part = x_BHTK if size == x_BHTK.shape[-1] else x_BHTK[..., :size]
    first, second = part.chunk(2, dim=-1)
    rotated = torch.addcmul(part * cos_B1TR, torch.cat((second, first), dim=-1), sin_B1TR)
    return rotated if part is x_BHTK else torch.cat((rotated, x_BHTK[..., size:]), dim=-1)


def for_heads(rotation):
    """(B, T, 2R) cosines and sines with an axis for the heads, once for all layers: (B, 1, T, 2R)."""
    return tuple(x.unsqueeze(1) for x in rotation)


def build_positions(config, of_patches: bool = False) -> nn.Module | None:
    """The module that `config.position_encoding` names, or None for "none". of_patches: for those of an image."""
    scheme = POSITION_SCHEMES[config.position_encoding]
    if scheme.acts_on is None:
        return None
    return (scheme.patches if of_patches else scheme).load()(config)


def apply_positions(scheme, x_BTD, batch, names, kinds, config, score_biases=None) -> tuple:
    """Run a position scheme once per forward pass: return (embeddings, keyword arguments for each layer).

    batch: a stack.Batch. names: the kind of attention of each layer. kinds: what attention_masks.layer_kinds returns.
    score_biases: the function of score_bias.py, for schemes that act on scores.
    """
    acts_on = POSITION_SCHEMES[config.position_encoding].acts_on
    if acts_on is None:
        return x_BTD, [{}] * len(names)
    if acts_on == "embeddings" and config.position_at == "embeddings":
        return x_BTD + scheme(x_BTD, batch.token_positions), [{}] * len(names)
    if acts_on == "embeddings":
        return x_BTD, [{f"positions_of_{config.position_at}": scheme(x_BTD, batch.token_positions)}] * len(names)
    if acts_on == "scores":
        return x_BTD, score_biases(scheme, x_BTD, batch, names, kinds, config)
    if acts_on == "attention":
        return x_BTD, [dict(zip(scheme.arguments, scheme(x_BTD)))] * len(names)
    if isinstance(scheme, RotaryEmbeddingPerLayerType):
        rotations = {name: for_heads(scheme(x_BTD, batch.token_positions, name)) for name in scheme.by_type}
        per_layer = [{"position_embeddings": rotations[kinds[name].layer_type]} for name in names]
    else:
        per_layer = [{"position_embeddings": for_heads(scheme(x_BTD, batch.token_positions))}] * len(names)
    if config.no_rope_layers is not None:
        per_layer = [arguments if rotated else {} for arguments, rotated in zip(per_layer, config.no_rope_layers)]
    return x_BTD, per_layer
