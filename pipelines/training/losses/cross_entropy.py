"""The loss of any model's logits, exact per label over accumulated batches and processes."""

from anyformer.modeling.image_losses import class_loss
from anyformer.modeling.task_losses import sequence_classification_loss


def loss_of_logits(
    outputs, labels, num_items_in_batch=None, *, shift: bool, label_smoothing: float = 0.0, logits_of=None
):
    """Cross-entropy of `outputs.logits` (..., C), summed and divided by num_items_in_batch (None: number of labels).

    For logits (B, 1) and float labels (B,) it is the squared error, as in transformers; labels of -100 do not count.

    labels: classes (...), where -100 does not count; or probabilities of the classes (..., C), of which
    num_items_in_batch counts every entry, as Trainer does. shift: labels are aligned with the inputs, and each is
    predicted at the position before. logits_of: outputs -> logits, for outputs without `logits`.
    """
    if logits_of is not None:
        logits = logits_of(outputs)
    else:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    if labels.is_floating_point() and logits.shape == (*labels.shape, 1):
        return sequence_classification_loss(logits, labels, "regression", num_items_in_batch)
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    of_classes = logits.shape[-1:] if labels.is_floating_point() else ()
    return class_loss(logits.flatten(0, -2), labels.reshape(-1, *of_classes), num_items_in_batch, label_smoothing)
