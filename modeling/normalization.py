"""Normalisation layers. Their class names contain LayerNorm / RMSNorm: transformers initialises them by that."""

from torch import nn


def build_norm(config, size: int | None = None) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019, eq. 4) over the last axis.

    `size` is the length of that axis; None: `hidden_size`.
    """
    size = config.hidden_size if size is None else size
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)
