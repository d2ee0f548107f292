"""Losses of the heads on images: a sum divided by a count, as those of task_losses.py."""

from torch.nn import functional

from .lm_head import IGNORE_INDEX
from .task_losses import averaged


def class_loss(logits, labels, num_items_in_batch=None, label_smoothing: float = 0.0):
    """Cross-entropy of logits (B, C) against class numbers (B,), -100 not counted, or probabilities (B, C) of mixup.

    `num_items_in_batch` counts entries of labels, as Trainer does: C for each image with probabilities.
    label_smoothing: share of each label's probability that is spread over all classes (Szegedy et al. 2016, section 7).
    """
    labels = labels.to(logits.device)
    counted = labels != IGNORE_INDEX
    if labels.shape == logits.shape:
        labels, counted = labels.float(), counted[..., 0]
        if num_items_in_batch is not None:
            num_items_in_batch = num_items_in_batch / logits.shape[-1]
    total = functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=label_smoothing
    )
    return averaged(total, counted.sum(), num_items_in_batch)


def masked_pixel_loss(pixel_values, reconstruction, masked_BN, patch_size: int, num_items_in_batch=None):
    """Mean absolute error of the masked patches' pixels (Xie et al. 2022, section 3.4); images (B, C, R * P, S * P).

    num_items_in_batch: masked patches in the whole optimizer step; the sum of the patches' means is divided by it.
    """
    errors = (reconstruction.float() - pixel_values.float()).abs().mean(dim=1, keepdim=True)
    of_patches = functional.avg_pool2d(errors, patch_size).flatten(1)
    total = of_patches.masked_fill(~masked_BN, 0.0).sum()
    return averaged(total, masked_BN.sum().clamp(min=1), num_items_in_batch)
