"""Exact evaluation: sums over every counted label of every row, on all processes."""

from itertools import chain, islice, repeat

import torch

from ...data.batch_keys import IGNORE_INDEX
from .loss_parts import PartLosses, means, parts_of_rows, stacked


def float64_device(device: torch.device) -> torch.device:
    """The device, or the CPU for MPS, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


class EvaluationSums:
    """The loss and the predictions of one pass over the evaluation rows.

    The loss is a sum divided by the number of counted labels: the mean of batches' means would give short rows too much
    weight.

    Args:
        trainer: whose model is measured, an AnyformerTrainer. Its `scorer` has predictions(logits, labels) -> (N, K)
            numbers, of each row or of each label, and compute_metrics(predictions) -> dict from all of them but those
            with a -100; None: the loss alone is measured. They come in the order of the rows, also where batches are of
            rows of similar length and several processes share them. labels_of_tokens of it: whether predictions are of
            labels, several in a row. Its `counts_rows`: whether the rows of this process count; of processes that read
            the same rows those of one do.
        dataset: the PaddedEvalDataset that is passed over; its `order` is for batches that do not say which rows they
            hold.
    """

    def __init__(self, trainer, dataset):
        device, parts = float64_device(trainer.args.device), parts_of_rows(trainer.parts_of, dataset.rows)
        self.order = chain(dataset.order, repeat(len(dataset.order)))
        self.counts, self.scorer, self.told_apart_by = trainer.counts_rows, trainer.scorer, trainer.parts.told_apart_by
        self.sums, self.parts, self.part_losses = torch.zeros(2, dtype=torch.float64, device=device), {}, None
        if parts is not None:
            sums = torch.zeros(len(parts[0]), 2, dtype=torch.float64, device=device)
            self.part_losses = PartLosses(*parts, trainer.shifts_labels, sums)
        self.predictions: list[torch.Tensor] = []
        self.numbers: list[torch.Tensor] = []  # of the rows of the predictions

    def add(
        self, total: torch.Tensor, count: torch.Tensor, logits=None, row_losses=None, labels=None, rows=None
    ) -> None:
        """Add a batch: the sum of its losses, its counted labels, and for a scorer or parts its logits and labels.

        row_losses: as PartLosses.add. rows: their numbers; None: the collator of a plug-in has left them out.
        """
        self.sums += torch.stack([total, count]).to(self.sums)
        if self.scorer is not None:
            self.predictions.append(self.scorer.predictions(logits, labels))
            rows = list(islice(self.order, len(labels))) if rows is None else rows
            numbers = torch.as_tensor(rows, dtype=torch.int32, device=labels.device)
            if getattr(self.scorer, "labels_of_tokens", False):
                numbers = numbers.repeat_interleave((labels != IGNORE_INDEX).sum(-1))
            self.numbers.append(numbers)
        if self.part_losses is not None:
            self.part_losses.add(logits, row_losses, labels, rows)

    def add_parts(self, outputs, batch: dict, logits=None, row_losses=None, rows=None) -> torch.Tensor:
        """Add a batch whose outputs have losses divided by 1; returns the sum of its first part.

        logits, row_losses, rows: as `add` takes them, for the parts that rows are of.
        """
        found = self.told_apart_by.sums(outputs, batch, 1)
        found = {name: stacked(pair).to(self.sums) for name, pair in found.items()}
        self.parts = {name: self.parts.get(name, 0) + pair for name, pair in found.items()}
        first = found[self.told_apart_by.losses[0]]
        self.sums += first
        if self.part_losses is not None:
            self.part_losses.add(logits, row_losses, batch["labels"], rows)
        return first[0]

    def metrics(self, accelerator) -> dict:
        """{"loss": mean, "nll": sum, "predictions": number of labels} and the scorer's metrics, over all processes.

        A loss of several parts is the sum of their means, nll and predictions are the first part's; the means stand
        beside it, as do the means of the parts that rows are of.
        """
        if not self.counts:
            self.sums.zero_()
            self.predictions = [torch.full_like(found, IGNORE_INDEX) for found in self.predictions]
        total, count = accelerator.reduce(self.sums, "sum").tolist()
        found = {"loss": total / count, "nll": total, "predictions": count} if count else {}
        if self.parts:
            parts = means(accelerator.reduce(torch.stack(list(self.parts.values())), "sum").tolist(), self.parts)
            found |= parts | {"loss": sum(parts.get(name, 0.0) for name in self.told_apart_by.losses)}
        if self.part_losses is not None:
            found |= self.part_losses.collect(accelerator.reduce)
        if self.predictions:
            # PaddedEvalDataset: equally many rows on each process; those without labels fill up, and what is counted by
            # label differs between processes.
            found_here = torch.cat(self.predictions), torch.cat(self.numbers)
            predictions, numbers = (
                accelerator.gather(accelerator.pad_across_processes(each, pad_index=IGNORE_INDEX))
                for each in found_here
            )
            counted = (predictions != IGNORE_INDEX).all(dim=-1)
            predictions = predictions[counted][numbers[counted].argsort(stable=True)]
            found |= self.scorer.compute_metrics(predictions.cpu().numpy()) if len(predictions) else {}
        return found
