"""Differential attention: the difference of two softmaxes, which cancels what both attend to by mistake."""

import math

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import Attention, eager_attention


class DifferentialAttention(Attention):
    """(softmax(q1 k1) - l softmax(q2 k2)) v, each result normed: Ye et al. 2024 (Differential Transformer), eq. 1-3.

    Head i of the first half and head i of the second half are a pair, with values of both, 2K channels (transformers'
    DiffLlama). l = exp(a b) - exp(c d) + start, with learned a, b, c, d (K) and a start that grows with depth.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer_idx)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.empty(self.head_dim)))
        self.groupnorm = nn.RMSNorm(2 * self.head_dim, eps=config.norm_eps, elementwise_affine=False)

    def init_own_weights(self, std: float, residual_std: float) -> None:
        for weight in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            init.normal_(weight, mean=0.0, std=self.config.lambda_std_dev)

    def own_backend(self, **kwargs):
        """The backend, called once for each half of the values: kernels want values as wide as queries and keys."""
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.implementation(), eager_attention)
        run = super().own_backend(**kwargs) or interface

        def difference(module, query, key, value, attention_mask, **arguments):
            halves = (half.repeat(1, 2, 1, 1) for half in value.chunk(2, dim=1))
            outputs = [run(module, query, key, half, attention_mask, **arguments) for half in halves]
            first, second = torch.cat([out_BTHK for out_BTHK, _ in outputs], dim=-1).chunk(2, dim=2)
            mixed = self.groupnorm(first - self.share().to(first.dtype) * second) * (1 - self.start)
            return mixed.reshape(*mixed.shape[:2], -1, self.head_dim), outputs[0][1]

        return difference

    def share(self) -> torch.Tensor:
        """The factor l of the second softmax, in fp32 at least."""
        wide = torch.promote_types(self.lambda_q1.dtype, torch.float32)
        first, second = (
            (q.to(wide) * k.to(wide)).sum().exp()
            for q, k in ((self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2))
        )
        return first - second + self.start
