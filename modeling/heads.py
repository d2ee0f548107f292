"""Output layers shared by the families."""

from torch import nn

from .losses import linear_cross_entropy


class LanguageModelHead(nn.Linear):
    """Hidden states -> logits, or -> the loss without holding the logits.

    The loss is computed inside this module's forward on purpose: ZeRO-3 and FSDP gather a module's weight for its
    forward only, so a loss that read `lm_head.weight` from outside would see an empty shard.
    """

    def __init__(self, config):
        super().__init__(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden_states, labels=None, num_items_in_batch=None):
        """(B, T, D) -> logits (B, T, V); with `labels` (B, T), aligned with the predictions, -> scalar loss."""
        if labels is None:
            return super().forward(hidden_states)
        return linear_cross_entropy(hidden_states.flatten(0, -2), self.weight, labels.flatten(), num_items_in_batch)
