"""A linear layer on the few rows that generation has, one for each text."""

import torch
from torch import nn

# On a CPU the weight first, W x^T, where W is too large for the core's own cache and its rows are not short. Time of
# `linear` / time of this, with one thread (AMX and avx512-bf16, torch 2.15, 256 to 768 channels): 8 rows 1.2 to 2.0 in
# fp32 and 1.2 to 1.5 in bf16, 32 rows 1.3, 128 rows 1.0; 4 rows 1.4 for a vocabulary, otherwise 0.9; 2 rows 0.7.
LEAST_ROWS, MOST_ROWS, LEAST_WEIGHTS, LEAST_CHANNELS = 8, 32, 2**18, 256
LEAST_ROWS_IF_WIDE, WIDE = 4, 4096


def product(x_NI, weight, bias=None):
    """(N, I) -> (N, O), as nn.functional.linear; either rows or columns of the result lie together in memory."""
    if not weight_comes_first(x_NI.shape[0], weight):
        return nn.functional.linear(x_NI, weight, bias)
    out_NO = torch.mm(weight, x_NI.t()).t()
    return out_NO if bias is None else out_NO + bias


def weight_comes_first(rows: int, weight) -> bool:
    """Whether W x^T is the faster way to multiply so many rows by a weight (O, I)."""
    if rows < LEAST_ROWS_IF_WIDE or rows > MOST_ROWS or weight.device.type != "cpu":
        return False
    outputs, channels = weight.shape
    large = channels >= LEAST_CHANNELS and outputs * channels >= LEAST_WEIGHTS
    return large and (rows >= LEAST_ROWS or outputs >= WIDE)
