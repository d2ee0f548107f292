"""Position schemes: one small class each, and one registry row.

A scheme acts in one of three places, named by its class attribute `place`:
    "embedding"  forward(x, position_ids) -> (B or 1, T, D), added to the token embeddings
    "rotation"   forward(x, position_ids) -> (cos, sin), each (B or 1, T, 2R) for the R channel pairs of a head (cos
                 twice; sin negated, then sin), rotating queries and keys of every layer
    "bias"       forward(x, distances (T, S)) -> (H, T, S), added to the attention scores of every layer; a distance is
                 the query's index minus the key's, which packing and padding leave as it is
All are computed once per forward pass. Buffers are refilled in `_init_weights` (base.py): transformers builds models on
the meta device and hands non-persistent buffers back uninitialised. For rotary modules it does so itself.
"""

import copy
import math

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update


class LearnedPositions(nn.Embedding):
    """One trained vector per position (Radford et al. 2018, section 3.1)."""

    place = "embedding"

    def __init__(self, config):
        super().__init__(config.max_position_embeddings, config.hidden_size)

    def check_length(self, length: int) -> None:
        """Refuse a row of one document that is too long; rows of several count from 0 in each, and may be longer."""
        if length > self.num_embeddings:
            raise ValueError(
                f"the input has {length} tokens, but max_position_embeddings={self.num_embeddings} learned positions; "
                f"shorten the input or train with more positions"
            )

    def forward(self, x_BTD, position_ids):
        return super().forward(position_ids)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the position at geometric wavelengths (Vaswani et al. 2017, section 3.5). No parameters.

    Sines fill the first half of the channels and cosines the second, as in the authors' code (tensor2tensor) and in
    transformers' Marian; the paper's text interleaves them, which only renames channels.
    """

    place = "embedding"

    def __init__(self, config):
        super().__init__()
        self.hidden_size = config.hidden_size

    def forward(self, x_BTD, position_ids):
        sines = self.hidden_size - self.hidden_size // 2  # an odd width has one sine more
        channels = torch.arange(sines, device=x_BTD.device, dtype=torch.float)
        frequencies = torch.exp(channels * (-2 * math.log(10_000.0) / self.hidden_size))
        angles = position_ids[..., None].float() * frequencies
        return torch.cat((angles.sin(), angles[..., : self.hidden_size // 2].cos()), dim=-1).to(x_BTD.dtype)


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
        inv_freq = self.inv_freq.to(device=x.device, dtype=torch.float)
        # cos(-a) = cos(a) and sin(-a) = -sin(a): the layout `rotate` reads, in one step
        angles = position_ids[..., None].float() * torch.cat((-inv_freq, inv_freq))
        return (angles.cos() * self.attention_scaling).to(x.dtype), (angles.sin() * self.attention_scaling).to(x.dtype)


class RotaryEmbeddingPerLayerType(nn.Module):
    """One rotary embedding for each layer type, where `rope_parameters` is nested (a theta per kind of layer)."""

    place = "rotation"

    def __init__(self, config):
        super().__init__()
        self.by_type = nn.ModuleDict()
        for layer_type in dict.fromkeys(config.layer_types):
            flat = copy.copy(config)
            flat.rope_parameters = config.rope_parameters[layer_type]
            self.by_type[layer_type] = RotaryEmbedding(flat)

    def forward(self, x, position_ids, layer_type):
        return self.by_type[layer_type](x, position_ids)


class AlibiBias(nn.Module):
    """Linear distance penalty per head (Press et al. 2022, section 3). No parameters.

    Head i of H (a power of two) has the slope 2^(-alibi_bias_max * i / H), i = 1..H, with alibi_bias_max = 8 in the
    paper. Other head counts take the slopes of the next lower power of two, then every second one of the next higher,
    as the authors' code and BLOOM do.
    """

    place = "bias"

    def __init__(self, config):
        super().__init__()
        self.num_heads, self.alibi_bias_max = config.num_attention_heads, config.alibi_bias_max
        self.slopes = nn.Buffer(self.compute_slopes(), persistent=False)

    def compute_slopes(self) -> torch.Tensor:
        def of_power(heads):
            return [2.0 ** (-self.alibi_bias_max * i / heads) for i in range(1, heads + 1)]

        lower = 2 ** int(math.log2(self.num_heads))
        slopes = of_power(lower) + of_power(2 * lower)[::2][: self.num_heads - lower]
        return torch.tensor(slopes, dtype=torch.float)

    def forward(self, x_BTD, distances_TS):
        return (-self.slopes.to(x_BTD.device)[:, None, None] * distances_TS.abs()).to(x_BTD.dtype)


class RelativePositionBias(nn.Module):
    """A trained bias per head and bucket of distances (Raffel et al. 2020, section 2.1), shared by all layers.

    Of N buckets the first N/2 hold one distance each; the others grow logarithmically up to max_distance, and the last
    holds all beyond. Keys after the query, which a causal mask hides, fall into bucket 0.
    """

    place = "bias"

    def __init__(self, config):
        super().__init__()
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.relative_attention_bias = nn.Embedding(self.num_buckets, config.num_attention_heads)

    def buckets(self, distances: torch.Tensor) -> torch.Tensor:
        """Distances (integer, any shape) to bucket numbers in [0, num_buckets)."""
        distances = distances.clamp(min=0)
        exact = self.num_buckets // 2
        # In the order of operations of the original, whose fp32 rounding decides at the buckets' borders.
        growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (growth * (self.num_buckets - exact)).to(torch.long)
        return torch.where(distances < exact, distances, far.clamp(max=self.num_buckets - 1))

    def forward(self, x_BTD, distances_TS):
        return self.relative_attention_bias(self.buckets(distances_TS)).permute(2, 0, 1).to(x_BTD.dtype)


def rotate(x_BHTK: torch.Tensor, cos_B1TR: torch.Tensor, sin_B1TR: torch.Tensor) -> torch.Tensor:
    """Rotate the first 2R channels of each head, channel i together with channel i + R; the rest pass through.

    cos and sin are RotaryEmbedding's, with an axis for the heads. Laid out so, a rotation is three operations.
    """
    rotated = cos_B1TR.shape[-1]
    turned = x_BHTK if rotated == x_BHTK.shape[-1] else x_BHTK[..., :rotated]
    first, second = turned.chunk(2, dim=-1)
    out = torch.addcmul(turned * cos_B1TR, torch.cat((second, first), dim=-1), sin_B1TR)
    return out if turned is x_BHTK else torch.cat((out, x_BHTK[..., rotated:]), dim=-1)


POSITION_SCHEMES = {
    "none": None,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rotary": RotaryEmbedding,
    "alibi": AlibiBias,
    "relative": RelativePositionBias,
}


def build_positions(config) -> nn.Module | None:
    """The scheme that `config.position_encoding` names, or None for "none"."""
    scheme = POSITION_SCHEMES[config.position_encoding]
    if scheme is RotaryEmbedding and "rope_type" not in config.rope_parameters:
        scheme = RotaryEmbeddingPerLayerType
    return None if scheme is None else scheme(config)


def apply_positions(scheme, x_BTD, position_ids, past_key_values, layers_by_kind):
    """Let `scheme` act: return (embeddings, {kind of attention: keyword arguments for its layers}).

    `layers_by_kind` maps each kind of attention to (index of one of its layers, its `layer_types` name).
    """
    if scheme is not None and scheme.place == "bias":
        return x_BTD, score_biases(scheme, x_BTD, past_key_values, layers_by_kind)
    if scheme is not None and scheme.place == "embedding":
        x_BTD = x_BTD + scheme(x_BTD, position_ids)
    if scheme is None or scheme.place == "embedding":
        return x_BTD, {kind: {} for kind in layers_by_kind}
    if isinstance(scheme, RotaryEmbeddingPerLayerType):
        rotations = {name: for_heads(scheme(x_BTD, position_ids, name)) for name in scheme.by_type}
        return x_BTD, {kind: {"position_embeddings": rotations[name]} for kind, (_, name) in layers_by_kind.items()}
    rotation = for_heads(scheme(x_BTD, position_ids))
    return x_BTD, {kind: {"position_embeddings": rotation} for kind in layers_by_kind}


def for_heads(rotation):
    """(B, T, 2R) cosines and sines with an axis for the heads, once for all layers: (B, 1, T, 2R)."""
    return tuple(x.unsqueeze(1) for x in rotation)


def score_biases(scheme, x_BTD, past_key_values, layers_by_kind) -> dict:
    """One (B, H, T, S) bias per kind of attention: caches of different kinds hold different numbers of keys."""
    batch, length = x_BTD.shape[:2]
    biases = {}
    for kind, (layer_idx, _) in layers_by_kind.items():
        past, keys, first_key = 0, length, 0
        if past_key_values is not None:
            past = past_key_values.get_seq_length(layer_idx)
            keys, first_key = past_key_values.get_mask_sizes(length, layer_idx)
        query_index = torch.arange(length, device=x_BTD.device) + past
        key_index = torch.arange(keys, device=x_BTD.device) + first_key
        bias_HTS = scheme(x_BTD, query_index[:, None] - key_index[None, :])
        # flex attention indexes the batch axis, so it is there; expanding costs no memory
        biases[kind] = {"position_bias": bias_HTS.expand(batch, -1, -1, -1)}
    return biases
