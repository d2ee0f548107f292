"""Exact evaluation: sums over every counted label of every row, on all processes."""

import math
from contextlib import AbstractContextManager
from itertools import chain, islice, repeat

import torch

from ...data.batch_keys import IGNORE_INDEX
from ...objectives.scores import Scored
from .loss_parts import LossParts, parts_of_rows


def float64_device(device: torch.device) -> torch.device:
    """The device; for MPS, which has no float64, the CPU."""
    return torch.device("cpu") if device.type == "mps" else device


def random_states_kept(device: torch.device) -> AbstractContextManager[None]:
    """A context after which the random states of the CPU and of a GPU are those before it."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


class EvaluationSums:
    """The loss and the predictions of one pass over the evaluation rows.

    The loss is the sum of all losses divided by the number of counted labels: a mean of the batches' means would give
    short rows too much weight.

    Args:
        trainer: an AnyformerTrainer, whose model is evaluated. Its `scores`, if they read logits, get all lines of
            predictions without a -100 in the order of the rows, even if batches were grouped by length or shared by
            processes. `counts_rows`: whether the rows of this process
            count; among processes that read the same rows only those of one do.
        dataset: of data/sample_ids.py; its order is used for batches that do not hold the numbers of their rows.
    """

    def __init__(self, trainer, dataset):
        device = float64_device(trainer.args.device)
        of_rows = None if trainer.engine.shares_rows else parts_of_rows(dataset.dataset)
        self.order = chain(dataset.indices, repeat(len(dataset)))
        self.counts = trainer.counts_rows
        self.scores = trainer.scores if trainer.scores is not None and trainer.scores.predicts else None
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.parts = LossParts(trainer.parts.told_apart_by, of_rows, trainer.shifts_labels, like=self.sums)
        self.predictions: list[torch.Tensor] = []
        self.numbers: list[torch.Tensor] = []  # row numbers of the predictions

    def add(
        self, total: torch.Tensor, count: torch.Tensor, logits=None, row_losses=None, labels=None, rows=None
    ) -> None:
        """Add a batch: the sum of its losses, the number of counted labels; logits and labels for scores or parts.

        row_losses: as for LossParts.add_rows. rows: numbers of the rows; None: a plug-in's collator has left them out.
        """
        self.sums += torch.stack([total, count]).to(self.sums)
        if self.scores is not None:
            self.predictions.append(self.scores.predictions(logits, labels))
            rows = list(islice(self.order, len(labels))) if rows is None else rows
            numbers = torch.as_tensor(rows, dtype=torch.int32, device=labels.device)
            if self.scores.predicts == "label":
                numbers = numbers.repeat_interleave((labels != IGNORE_INDEX).sum(-1))
            self.numbers.append(numbers)
        self.parts.add_rows(logits, row_losses, labels, rows)

    def add_parts(self, outputs, batch: dict, logits=None, row_losses=None, rows=None) -> torch.Tensor:
        """Add a batch with a loss of several parts, which are sums and not means; returns the sum of its first part.

        logits, row_losses, rows: as for `add`, to sum up the losses of each part of the rows.
        """
        first = self.parts.add(outputs, batch, 1)[self.parts.told_apart_by.losses[0]]
        self.sums += first
        self.parts.add_rows(logits, row_losses, batch["labels"], rows)
        return first[0]

    def metrics(self, accelerator) -> tuple[dict, Scored | None]:
        """({"loss": mean, "nll": sum, "predictions": number of labels} and the values of `Scored`, over all processes;
        what was scored, None without a prediction).

        Without a counted label the loss is NaN. A loss of several parts is the sum of their means, which are returned
        as well; nll and predictions are those of the first part. Where rows belong to parts, the mean loss of each part
        is also returned.
        """
        if not self.counts:
            self.sums.zero_()
            self.predictions = [torch.full_like(metrics, IGNORE_INDEX) for metrics in self.predictions]
        total, count = accelerator.reduce(self.sums, "sum").tolist()
        metrics = {"loss": total / count, "nll": total, "predictions": count} if count else {"loss": math.nan}
        scored = None
        metrics |= self.parts.collect(accelerator.reduce)
        if self.parts.told_apart_by is not None:
            metrics["loss"] = sum(metrics.get(name, 0.0) for name in self.parts.told_apart_by.losses)
        if self.predictions:
            # All processes have equally many rows (evaluation_rows), filled up with rows without labels. If there is
            # a prediction per label, their number differs between processes, so they are padded.
            local = torch.cat(self.predictions), torch.cat(self.numbers)
            predictions, numbers = (
                accelerator.gather(accelerator.pad_across_processes(tensor, pad_index=IGNORE_INDEX)) for tensor in local
            )
            counted = (predictions != IGNORE_INDEX).all(dim=-1)
            predictions = predictions[counted][numbers[counted].argsort(stable=True)]
            scored = self.scores.scored(predictions.cpu().numpy()) if len(predictions) else None
        return metrics | (scored.values if scored else {}), scored
