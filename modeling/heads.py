"""Output layers shared by the families."""

import torch
from torch import nn

from .losses import linear_cross_entropy


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
