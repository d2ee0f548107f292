"""The loss of any model's logits, exact per label over accumulated batches and processes."""

import torch

from ...data.batch_keys import IGNORE_INDEX


def loss_of_logits(
    outputs, labels, num_items_in_batch=None, *, shift: bool, label_smoothing: float = 0.0, logits_of=None
):
    """Cross-entropy of `outputs.logits` (..., C), summed and divided by num_items_in_batch (None: number of labels).

    logits_of: takes the logits out of the outputs, where they are not `outputs.logits`.

    Logits (B, 1) with labels (B,) of floats are numbers, as in transformers: squared error, -100 not counted.

    labels: class numbers (...), -100 not counted; or probabilities of the classes (..., C), of which num_items_in_batch
    counts every entry, as Trainer does. shift: labels are aligned with the inputs, each predicted one place before.
    """
    if logits_of is not None:
        logits = logits_of(outputs)
    else:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    if labels.is_floating_point() and logits.shape == (*labels.shape, 1):
        counted = labels.ne(IGNORE_INDEX)
        total = (logits.float().squeeze(-1) - labels).square().masked_fill(~counted, 0.0).sum()
        return total / (counted.sum() if num_items_in_batch is None else num_items_in_batch)
    if labels.is_floating_point():
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2).float(), labels.flatten(0, -2), reduction="sum", label_smoothing=label_smoothing
        )
        return total / ((labels.numel() if num_items_in_batch is None else num_items_in_batch) / labels.shape[-1])
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total / (labels.ne(IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)
