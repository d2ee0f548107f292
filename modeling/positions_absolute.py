"""Position schemes that have a vector for each position in a row: learned ones, and sines."""

import math

import torch
from torch import nn


class LearnedPositions(nn.Embedding):
    """One trained vector per position (Radford et al. 2018, section 3.1)."""

    def __init__(self, config):
        self.offset = config.position_offset
        width = getattr(config, "embedding_size", None) or config.hidden_size
        super().__init__(config.max_position_embeddings + self.offset, width)

    def check_length(self, length: int) -> None:
        """Raise ValueError for a row of one document that is too long; in packed rows each document counts from 0."""
        positions = self.num_embeddings - self.offset
        if length > positions:
            raise ValueError(
                f"the input has {length} tokens, but max_position_embeddings={positions} learned positions; "
                f"shorten the input or train with more positions"
            )

    def forward(self, x_BTD, position_ids):
        return super().forward(position_ids + self.offset if self.offset else position_ids)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the position at geometric wavelengths (Vaswani et al. 2017, section 3.5). No parameters.

    Sines fill the first half of the channels and cosines the second, as in the authors' code (tensor2tensor) and in
    transformers' Marian; the paper's text interleaves them, which only renames channels.
    """

    def __init__(self, config):
        super().__init__()
        self.hidden_size = getattr(config, "embedding_size", None) or config.hidden_size

    def forward(self, x_BTD, position_ids):
        # In fp32 an angle of 1,000 is off by 6e-5, but Apple's GPUs have no fp64.
        dtype = torch.float32 if x_BTD.device.type == "mps" else torch.float64
        sines = self.hidden_size - self.hidden_size // 2  # an odd width has one sine more
        channels = torch.arange(sines, device=x_BTD.device, dtype=dtype)
        frequencies = torch.exp(channels * (-2 * math.log(10_000.0) / self.hidden_size))
        angles = position_ids[..., None].to(dtype) * frequencies
        return torch.cat((angles.sin(), angles[..., : self.hidden_size // 2].cos()), dim=-1).to(x_BTD.dtype)
