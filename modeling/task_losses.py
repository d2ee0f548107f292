"""Losses of the task heads. Each is a sum divided by `num_items_in_batch`, or if that is None by its own count.

Trainer passes the label count of all micro-batches of an optimizer step and then does not divide by their number: a
head that took a mean instead would multiply its gradient by the accumulation steps, as transformers' own regression
and multi-label losses do.
"""

import torch
from torch.nn import functional

from .lm_head import IGNORE_INDEX

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def averaged(total, count, num_items_in_batch):
    """The sum divided by the count of the whole optimizer step, or if that is None by the count of this batch.

    A sum over nothing is 0, and so is its mean.
    """
    if num_items_in_batch is not None:
        count = num_items_in_batch.to(total.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch
    return total / (count + (count == 0))


def token_classification_loss(logits, labels, num_items_in_batch=None):
    """Cross-entropy of logits (..., C) against class numbers (...); -100 is not counted."""
    labels = labels.to(logits.device).flatten()
    total = functional.cross_entropy(logits.flatten(0, -2).float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return averaged(total, (labels != IGNORE_INDEX).sum(), num_items_in_batch)


def problem_type_of(labels: torch.Tensor, num_labels: int) -> str:
    """The problem type of such labels, by transformers' rule (`problem_type` of a config left at None)."""
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def sequence_classification_loss(logits, labels, problem_type, num_items_in_batch=None):
    """The loss of `problem_type` for logits (B, C).

    single_label_classification: labels (B,) class numbers, cross-entropy. multi_label_classification: labels (B, C) of
    0 and 1, binary cross-entropy. regression: labels (B,) or (B, C), squared error; -100 is not counted. Raises
    ValueError for another problem type.
    """
    if problem_type not in PROBLEM_TYPES:
        raise ValueError(f"problem_type={problem_type!r} is not known; known: {', '.join(PROBLEM_TYPES)}")
    if problem_type == "single_label_classification":
        return token_classification_loss(logits, labels, num_items_in_batch)
    labels = labels.to(device=logits.device, dtype=torch.float).view_as(logits)
    if problem_type == "regression":
        counted = labels != IGNORE_INDEX  # rows without a label fill up the last batch
        total = (logits.float() - labels).square().masked_fill(~counted, 0.0).sum()
        return averaged(total, counted.sum(), num_items_in_batch)
    total = functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
    return averaged(total, labels.numel(), num_items_in_batch)


def span_loss(start_logits, end_logits, start_positions, end_positions, num_items_in_batch=None, attention_mask=None):
    """Mean cross-entropy of an answer's first and last token; logits (B, T), positions (B,) or (B, 1).

    Positions outside the row (the answer was cut off) are not counted, as in transformers. Padding, by an
    attention_mask (B, T), has no share of the probability: the loss of a row does not depend on its batch.
    """
    losses = []
    for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
        positions = positions.to(logits.device).flatten()
        inside = (positions >= 0) & (positions < logits.shape[-1])
        if attention_mask is not None and attention_mask.dim() == 2:
            real = attention_mask.to(logits.device) != 0
            logits = logits.masked_fill(~real, torch.finfo(logits.dtype).min)
            inside &= real.gather(1, positions.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
        losses.append(
            token_classification_loss(logits, torch.where(inside, positions, IGNORE_INDEX), num_items_in_batch)
        )
    return (losses[0] + losses[1]) / 2
