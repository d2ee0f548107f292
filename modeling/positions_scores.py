"""Position schemes that are biases of attention scores: ALiBi's and T5's."""

import math

import torch
from torch import nn
from transformers import initialization as init


class AlibiBias(nn.Module):
    """Linear distance penalty per head (Press et al. 2022, section 3). No parameters.

    Head i of H (a power of two) has the slope 2^(-alibi_bias_max * i / H), i = 1..H, with alibi_bias_max = 8 in the
    paper. Other head counts take the slopes of the next lower power of two, then every second one of the next higher,
    as the authors' code and BLOOM do.
    """

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

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.copy_(self.slopes, self.compute_slopes())

    def forward(self, x_BTD, distances_TS):
        return (-self.slopes.to(x_BTD.device)[:, None, None] * distances_TS.abs()).to(x_BTD.dtype)


class RelativePositionBias(nn.Module):
    """A trained bias per head and bucket of distances (Raffel et al. 2020, section 2.1), one table for all layers.

    Of N buckets the first N/2 hold one distance each; the others grow logarithmically up to max_distance, and the last
    holds all beyond. Keys after the query, which a causal mask hides, then fall into bucket 0; without a causal mask
    the buckets are split in two, N/2 of them for keys after the query.
    """

    def __init__(self, config):
        super().__init__()
        self.num_buckets, self.is_causal = config.relative_attention_num_buckets, config.is_causal
        self.max_distance = config.relative_attention_max_distance
        self.relative_attention_bias = nn.Embedding(self.num_buckets, config.num_attention_heads)
        self.relative_attention_bias.init_gain = config.hidden_size**-0.5

    def buckets(self, distances: torch.Tensor) -> torch.Tensor:
        """Distances (integer, any shape) to bucket numbers in [0, num_buckets)."""
        first, num_buckets = 0, self.num_buckets
        if self.is_causal:
            distances = distances.clamp(min=0)
        else:
            num_buckets //= 2
            first, distances = num_buckets * (distances < 0).to(torch.long), distances.abs()
        exact = num_buckets // 2
        # The original's order of operations: its fp32 rounding decides at the buckets' borders.
        growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (growth * (num_buckets - exact)).to(torch.long)
        return first + torch.where(distances < exact, distances, far.clamp(max=num_buckets - 1))

    def forward(self, x_BTD, distances_TS):
        return self.relative_attention_bias(self.buckets(distances_TS)).permute(2, 0, 1).to(x_BTD.dtype)


def relative_positions(config) -> nn.Module:
    """A RelativePositionBias, or one for each layer (Chung et al. 2023, UMT5)."""
    if config.relative_attention_shared:
        return RelativePositionBias(config)
    return nn.ModuleList(RelativePositionBias(config) for _ in range(config.num_hidden_layers))
