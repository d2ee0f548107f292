"""Layers between an encoder and a head, and the loss of masked tokens.

B rows, T tokens, D hidden size, E embedding size.
"""

import torch
from torch import nn
from transformers.activations import ACT2FN

from .block import build_norm
from .lm_head import IGNORE_INDEX, head_width, language_model_loss


class HeadTransform(nn.Module):
    """dense, activation and norm between an encoder and its language-model head (Devlin et al. 2019, as released)."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, head_width(config), bias=config.head_bias)
        self.act_fn = ACT2FN[config.head_act or config.hidden_act]
        self.norm = build_norm(config, head_width(config))

    def forward(self, hidden_states):
        """(..., D) -> (..., E)."""
        return self.norm(self.act_fn(self.dense(hidden_states)))


class Pooler(nn.Module):
    """A dense layer and activation between pooled hidden states and a head (Devlin et al. 2019, as released)."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, getattr(config, "pooler_output_size", None) or config.hidden_size)
        self.act_fn = ACT2FN[config.pooler_act]

    def forward(self, pooled):
        """(B, D) -> (B, pooler_output_size)."""
        return self.act_fn(self.dense(pooled))


def masked_language_model_loss(head, transform, hidden_states, labels, num_items_in_batch=None, labelled=None):
    """(B, T, D) and labels (B, T), -100 where nothing is predicted -> scalar loss of the labelled positions, and each
    row's sum of losses (B,), without gradients.

    `transform` (None: nothing) and `head` run on labelled positions only, about one in seven. Their number is read on
    the host. A graph of fixed shapes, compiled or exported, runs them on every position. If none is labelled, the loss
    is 0 and its gradients are zeros. labelled: indices into all B * T of positions to run on; None: found by labels.
    """
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORE_INDEX).sum().clamp(min=1)
    rows, length = labels.shape
    if not torch.compiler.is_compiling():
        labels = labels.flatten()
        labelled = (labels != IGNORE_INDEX).nonzero()[:, 0] if labelled is None else labelled
        hidden_states, labels = hidden_states.flatten(0, -2).index_select(0, labelled), labels[labelled]
    if transform is not None:
        hidden_states = transform(hidden_states)
    loss, losses = language_model_loss(head, hidden_states, labels, num_items_in_batch)
    if labels.ndim == 1:
        losses = losses.new_zeros(rows * length).index_copy(0, labelled, losses)
    return loss, losses.view(rows, length).sum(-1)
