"""The choice of a loss that is exact per label: the model's, one computed here from its logits, or the objective's."""

import inspect
from collections.abc import Callable

import torch
from anyformer.modeling.experts_losses import row_weights, weighted_router_losses
from anyformer.modeling.image_losses import class_loss
from anyformer.modeling.seq2seq import shift_right
from anyformer.modeling.task_losses import sequence_classification_loss

from ...accounting.lora import plain
from ...data.batch_keys import IGNORE_INDEX
from ...objectives.losses import OwnLoss


class ModelLoss:
    """The loss of one model, and the inputs that its forward needs for it.

    Exact means: divided by the number of labels in all batches of an optimizer step. Our models and transformers'
    decoders do that; transformers' other heads (BERT, T5, BART) take the mean over each batch.

    Args:
        model: Trainer's model; for a PEFT model, the forward of its base is inspected.
        shifts_labels: whether labels are aligned with the inputs, so that each is predicted at the position before.
        accepts_loss_kwargs: Trainer's attribute model_accepts_loss_kwargs.
        label_smoothing: for the training loss; evaluation has none.
        own: the objective's loss (objectives/losses.py), which replaces the model's; None: it has none.
        logits_of: as in Learns.loss_parts.

    `function(outputs, labels)` is the training loss, router losses included. If the objective has its own loss, it gets
    the whole batch as `labels`. None: the model computes the loss, with `training_extras` among its inputs.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        shifts_labels: bool,
        accepts_loss_kwargs: bool,
        label_smoothing: float,
        own: OwnLoss | None = None,
        logits_of=None,
    ):
        self._model = model = plain(model)
        parameters = inspect.signature(model.forward).parameters
        self.shifts_labels, self.own, self.logits_of = shifts_labels, own, logits_of
        self.is_exact = "num_items_in_batch" in parameters or (shifts_labels and accepts_loss_kwargs)
        self._skips_logits, self._gives_tokens = "return_logits" in parameters, "of_tokens" in parameters
        self._takes_labels = "labels" in parameters  # if not, labels are only counted
        self._make_decoder_inputs = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        config = getattr(model, "config", None)
        if self._make_decoder_inputs is None and getattr(config, "is_encoder_decoder", False) and model.can_generate():
            start, padding = config.decoder_start_token_id, config.pad_token_id  # M2M100 shifts in its forward alone
            self._make_decoder_inputs = lambda labels: shift_right(labels, start, padding)
        smooths = bool(label_smoothing) and getattr(model, "takes_label_smoothing", "label_smoothing" in parameters)
        self.training_extras = {"label_smoothing": label_smoothing} if smooths else {}
        self._smoothing = label_smoothing
        self.function = None
        if not self.is_exact or (label_smoothing and not smooths):
            self.function = self._loss_of_logits
        if own is not None:
            self.function = self._own_loss

    def _loss_of_logits(self, outputs, labels, num_items_in_batch=None):
        options = {"shift": self.shifts_labels, "label_smoothing": self._smoothing, "logits_of": self.logits_of}
        loss = loss_of_logits(outputs, labels, num_items_in_batch, **options)
        counted = labels[..., 1:] if self.shifts_labels else labels
        return loss + self._of_routers(outputs, lambda rows: row_weights(rows, counted, num_items_in_batch))

    def _own_loss(self, outputs, batch: dict, num_items_in_batch=None):
        total = self.own.total(outputs, batch, self._smoothing)
        items = self.count(batch) if num_items_in_batch is None else num_items_in_batch
        items = items + (items == 0)  # a step whose labels weigh nothing has a loss of 0
        return total / items + self._of_routers(outputs, lambda rows: self.own.weights_of_rows(batch, rows) / items)

    def _of_routers(self, outputs, weights_of: Callable[[int], torch.Tensor]):
        """The router losses that the model's forward would add to its training loss; 0 without experts.

        weights_of: number of the model's rows -> each row's share of the loss.
        """
        if not self._model.training or not hasattr(outputs, "get"):
            return 0.0
        of_rows, config = outputs.get("router_losses"), self._model.config
        if of_rows is None:  # transformers' models have an aux_loss if their config asks for it
            mean = outputs.get("aux_loss")
            return 0.0 if mean is None else config.router_aux_loss_coef * mean
        added, aux_loss, z_loss = weighted_router_losses(config, of_rows, weights_of(of_rows.shape[1]))
        outputs |= {"aux_loss": aux_loss, "z_loss": z_loss}  # for the log
        return added

    def count(self, batch: dict) -> torch.Tensor:
        """The divisor of a batch's summed loss: the number of its counted labels, or their weights' sum."""
        if self.own is not None:
            return self.own.weight(batch)
        labels = batch["labels"]
        return (labels[..., 1:] if self.shifts_labels else labels).ne(IGNORE_INDEX).sum()

    def model_inputs(self, inputs: dict) -> dict:
        """The batch; without labels if neither the model nor a loss that is computed here takes them."""
        computed_here = self.own is not None or (self.function is not None and self.logits_of is not None)
        needed = self._takes_labels or computed_here
        return inputs if needed else {name: x for name, x in inputs.items() if name != "labels"}

    def _seen(self, batch: dict, label_smoothing: float = 0.0) -> dict:
        """What the model gets if the loss is the objective's: its part of the batch, and what is asked of tokens."""
        seen = {name: x for name, x in batch.items() if name not in self.own.beside}
        asked = self.own.of_tokens(batch, label_smoothing) if self._gives_tokens else None
        return seen if asked is None else seen | {"of_tokens": asked}

    def inputs_for_logits(self, inputs: dict) -> dict:
        """The inputs for a forward pass whose loss `function` computes.

        Trainer removes the labels and passes them to `function`, so an objective's loss gets the whole batch as labels.
        A sequence-to-sequence model, which makes decoder_input_ids from labels, gets them here.
        """
        if self.own is not None:
            return {**self._seen(inputs, self._smoothing), "labels": inputs}
        # With labels under any name the model would compute its loss, and in training return no logits.
        inputs = {name: x for name, x in inputs.items() if name != "shift_labels"}
        if self._make_decoder_inputs is None or "decoder_input_ids" in inputs:
            return inputs
        labels = inputs["labels"]
        empty = labels.eq(IGNORE_INDEX).all(dim=-1, keepdim=True)  # rows that fill up an evaluation's last batch
        some_token = int(not self._model.config.pad_token_id)  # mBART looks for a row's last token
        return {**inputs, "decoder_input_ids": self._make_decoder_inputs(labels=labels.masked_fill(empty, some_token))}

    def logits(self, outputs) -> torch.Tensor | None:
        """The logits of a model's outputs; None if there are none."""
        return outputs.get("logits") if self.logits_of is None else self.logits_of(outputs)

    def of_rows(self, outputs) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(logits, losses of a batch's rows) for LossParts: our models return the losses, others the logits."""
        return self.logits(outputs), outputs.get("row_losses")

    def outputs(self, model: torch.nn.Module, inputs: dict):
        """The outputs of a model with an exact loss, which is here the sum over a batch's labels."""
        extras = {"return_logits": False} if self._skips_logits else {}
        return model(**self.model_inputs(inputs), **extras, num_items_in_batch=1)

    def sum(self, model: torch.nn.Module, inputs: dict, needs_logits: bool, needs_rows: bool = False) -> tuple:
        """(loss summed over a batch's labels, without smoothing; logits; losses of its rows).

        The last two may be None if they are not needed; with needs_rows at least one of them is not.
        """
        if self.own is not None:
            outputs = model(**self._seen(inputs))
            logits = self.own.logits(outputs, inputs) if needs_logits or needs_rows else None
            return self.own.total(outputs, inputs), logits, None
        if self.is_exact and not needs_logits:
            outputs = self.outputs(model, inputs)
            return outputs.loss, *(self.of_rows(outputs) if needs_rows else (None, None))
        without = {name: x for name, x in self.inputs_for_logits(inputs).items() if name != "labels"}
        outputs = model(**without)
        total = loss_of_logits(
            outputs, inputs["labels"], num_items_in_batch=1, shift=self.shifts_labels, logits_of=self.logits_of
        )
        return total, self.logits(outputs) if needs_logits or needs_rows else None, None


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
