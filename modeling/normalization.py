"""Normalisation layers. Their class names contain LayerNorm / RMSNorm: transformers initialises them by that."""

from torch import nn


def build_norm(config) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019, eq. 4) over the last, `hidden_size` axis."""
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
