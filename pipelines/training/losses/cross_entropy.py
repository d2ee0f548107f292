"""The loss of any model's logits, exact per label over accumulated batches and processes."""

from anyformer.modeling.image_losses import class_loss
from anyformer.modeling.task_losses import sequence_classification_loss


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
        return sequence_classification_loss(logits, labels, "regression", num_items_in_batch)
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    of_classes = logits.shape[-1:] if labels.is_floating_point() else ()
    return class_loss(logits.flatten(0, -2), labels.reshape(-1, *of_classes), num_items_in_batch, label_smoothing)
