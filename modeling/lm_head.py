"""Output layers shared by the families."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN

from .linear_cross_entropy import IGNORE_INDEX, linear_cross_entropy
from .normalization import build_norm

ROWS_PER_CHUNK = 1024


def _head_width(config) -> int:
    """Input width of the head: tied to a factorised token table (ALBERT), that of the table."""
    return getattr(config, "embedding_size", None) or config.hidden_size


class LanguageModelHead(nn.Linear):
    """Hidden states -> logits, or -> the loss without holding the logits.

    The loss is computed inside this module's forward on purpose: ZeRO-3 and FSDP gather a module's weight for its
    forward only, so a loss that read `lm_head.weight` from outside would see an empty shard.

    `logit_multiplier` scales the hidden states before the product, which scales the logits up to the bias (T5 v1.0
    with tied embeddings: hidden_size**-0.5). With `final_logit_softcapping` c the logits z become c * tanh(z / c)
    (Gemma Team 2024, section 2).
    """

    def __init__(self, config):
        rows = getattr(config, "output_vocab_size", None) or config.vocab_size
        super().__init__(_head_width(config), rows, bias=getattr(config, "lm_head_bias", False))
        self.softcap = config.final_logit_softcapping
        self.multiplier = getattr(config, "logit_multiplier", 1.0)

    def forward(self, hidden_states, labels=None, num_items_in_batch=None, label_smoothing: float = 0.0):
        """(B, T, D) -> logits (B, T, V); with `labels` (B, T), aligned with the predictions, -> scalar loss."""
        if self.multiplier != 1:
            hidden_states = hidden_states * self.multiplier
        if labels is None:
            logits = super().forward(hidden_states)
            return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
        return linear_cross_entropy(
            hidden_states.flatten(0, -2),
            self.weight,
            labels.flatten(),
            num_items_in_batch,
            softcap=self.softcap,
            bias=self.bias,
            label_smoothing=label_smoothing,
        )


class HeadTransform(nn.Module):
    """dense, activation and norm between an encoder and its language-model head (Devlin et al. 2019, as released)."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, _head_width(config), bias=config.head_bias)
        self.act_fn = ACT2FN[config.head_act or config.hidden_act]
        self.norm = build_norm(config, _head_width(config))

    def forward(self, hidden_states):
        """(..., D) -> (..., E), E the embedding size."""
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


def language_model_loss(head, hidden_states, labels, num_items_in_batch=None, label_smoothing: float = 0.0):
    """(B, T, D) and labels (B, T), aligned with the predictions -> scalar loss, without holding the logits.

    A head of our own computes it from its weight. Tensor parallelism splits that weight and hooks the head
    (`_is_hooked` is transformers' mark), and PEFT wraps heads. Such heads compute logits, some rows at a time and once
    more in the backward pass.
    """
    if isinstance(head, LanguageModelHead) and not getattr(head, "_is_hooked", False):
        return head(hidden_states, labels, num_items_in_batch, label_smoothing)

    def chunk_loss(hidden, targets):
        return summed_loss(head(hidden), targets, label_smoothing)

    total = sum(checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks(hidden_states, labels))
    return total / ((labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)


def loss_of_logits(logits, labels, num_items_in_batch=None, label_smoothing: float = 0.0):
    """As `language_model_loss`, of logits (B, T, V) that the caller returns, too: the loss is then a function of them.

    Their copy in fp32 is made some rows at a time.
    """
    labels = labels.to(logits.device)
    total = sum(summed_loss(*chunk, label_smoothing) for chunk in chunks(logits, labels))
    return total / ((labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)


def chunks(x, labels):
    """(B, T, any) and labels (B, T) as pairs of at most ROWS_PER_CHUNK rows."""
    return zip(x.flatten(0, -2).split(ROWS_PER_CHUNK), labels.flatten().split(ROWS_PER_CHUNK))


def summed_loss(logits, labels, label_smoothing: float):
    return nn.functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=label_smoothing
    )


def masked_language_model_loss(head, transform, hidden_states, labels, num_items_in_batch=None, labelled=None):
    """(B, T, D) and labels (B, T), -100 where nothing is predicted -> scalar loss of the labelled positions.

    `transform` (None: nothing) and `head` run on those positions only, about one in seven of them all. Their number is
    read on the host. A graph of fixed shapes, compiled or exported, runs them on every position. Where none is
    labelled the loss is 0 and its gradients are zeros. labelled: their index among all B * T, where it is known.
    """
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORE_INDEX).sum().clamp(min=1)
    if not torch.compiler.is_compiling():
        labels = labels.flatten()
        labelled = (labels != IGNORE_INDEX).nonzero()[:, 0] if labelled is None else labelled
        hidden_states, labels = hidden_states.flatten(0, -2).index_select(0, labelled), labels[labelled]
    if transform is not None:
        hidden_states = transform(hidden_states)
    return language_model_loss(head, hidden_states, labels, num_items_in_batch)
