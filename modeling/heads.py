"""Output layers shared by the families."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .losses import IGNORE_INDEX, linear_cross_entropy

ROWS_PER_CHUNK = 1024


class LanguageModelHead(nn.Linear):
    """Hidden states -> logits, or -> the loss without holding the logits.

    The loss is computed inside this module's forward on purpose: ZeRO-3 and FSDP gather a module's weight for its
    forward only, so a loss that read `lm_head.weight` from outside would see an empty shard.

    With `final_logit_softcapping` c the logits z become c * tanh(z / c) (Gemma Team 2024, section 2).
    """

    def __init__(self, config):
        super().__init__(config.hidden_size, config.vocab_size, bias=False)
        self.softcap = config.final_logit_softcapping

    def forward(self, hidden_states, labels=None, num_items_in_batch=None):
        """(B, T, D) -> logits (B, T, V); with `labels` (B, T), aligned with the predictions, -> scalar loss."""
        if labels is None:
            logits = super().forward(hidden_states)
            return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
        return linear_cross_entropy(
            hidden_states.flatten(0, -2), self.weight, labels.flatten(), num_items_in_batch, softcap=self.softcap
        )


def language_model_loss(head, hidden_states, labels, num_items_in_batch=None):
    """(B, T, D) and labels (B, T), aligned with the predictions -> scalar loss, without holding the logits.

    A head of our own computes it from its weight. Tensor parallelism splits that weight and hooks the head
    (`_is_hooked` is transformers' mark), and PEFT wraps heads: what those give is logits, so they are asked for them,
    some rows at a time and once more in the backward pass.
    """
    if isinstance(head, LanguageModelHead) and not getattr(head, "_is_hooked", False):
        return head(hidden_states, labels=labels, num_items_in_batch=num_items_in_batch)

    def chunk_loss(hidden, targets):
        logits = head(hidden).float()
        return nn.functional.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")

    chunks = zip(hidden_states.flatten(0, -2).split(ROWS_PER_CHUNK), labels.flatten().split(ROWS_PER_CHUNK))
    total = sum(checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks)
    return total / ((labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)
