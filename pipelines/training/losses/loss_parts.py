"""Parts of a loss in the log: of the rows of each of several tasks, and of each head whose losses are added up."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from anyformer.modeling.lm_head import chunks, cross_entropy, shift_left
from torch.utils.data import Subset

from ...data.batch_keys import IGNORE_INDEX


def parts_of_rows(parts_of: Callable | None, rows) -> tuple[list[str], Callable[[int], str]] | None:
    """(names of the parts, number of a row -> its part) of rows, or of some of them, a torch Subset; None: no parts.

    Rows numbered beyond the last one only fill a batch, and have no labels: they count to the first part.

    parts_of: as Objective.parts_of; None: there are no parts.
    """
    if parts_of is None or rows is None:
        return None
    chosen = rows.indices if isinstance(rows, Subset) else None
    found = parts_of(rows if chosen is None else rows.dataset)
    if found is None:
        return None
    names, part_of = found
    if getattr(rows, "is_stream", False) or getattr(rows, "is_ordered", False):
        return list(names), part_of
    chosen = range(len(rows)) if chosen is None else chosen
    return list(names), lambda number: part_of(chosen[number]) if number < len(chosen) else names[0]


class PartLosses:
    """Sums of the losses of the rows of each part, kept on the device.

    The mean is per label and without smoothing, so that training and validation compare. parts, part_of: as
    parts_of_rows gives them. shifts_labels: as of AnyformerTrainer. sums: what is added to, (parts, 2); None: float32
    on the device of the losses.
    """

    def __init__(
        self,
        parts: Sequence[str],
        part_of: Callable[[int], str],
        shifts_labels: bool,
        sums: torch.Tensor | None = None,
    ):
        self.parts, self.part_of, self.shifts_labels = list(parts), part_of, shifts_labels
        self.sums = sums

    @torch.no_grad()
    def add(self, logits, row_losses: torch.Tensor | None, labels: torch.Tensor, rows: Sequence[int]) -> None:
        """Add a batch: logits (B, T, V), not read where its rows' losses (B,) are known; labels (B, T), the numbers of
        its rows (B,)."""
        if self.shifts_labels:  # the labels, not the logits, which would be copied
            labels = shift_left(labels)
        if row_losses is None:
            row_losses = losses_of(logits, labels)
        of_rows = torch.stack([row_losses, labels.ne(IGNORE_INDEX).sum(dim=1).to(row_losses)], dim=1)
        numbers = rows.tolist() if torch.is_tensor(rows) else rows
        places = torch.tensor([self.parts.index(self.part_of(int(number))) for number in numbers])
        places = places.to(row_losses.device, non_blocking=True)
        sums = of_rows.new_zeros(len(self.parts), 2).index_add_(0, places, of_rows)
        self.sums = sums if self.sums is None else self.sums + sums.to(self.sums)

    def collect(self, reduce: Callable) -> dict[str, float]:
        """{"loss_trec": mean over all processes since the last call}. reduce: sums a tensor over processes."""
        if self.sums is None:
            return {}
        sums, self.sums = reduce(self.sums).tolist(), None
        return {f"loss_{name}": total / count for name, (total, count) in zip(self.parts, sums) if count}


def losses_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The summed losses of rows (B,), of logits (B, T, V) and labels (B, T) that stand beside their predictions."""
    losses = [cross_entropy(*chunk, "none") for chunk in chunks(logits.detach(), labels)]
    return torch.cat(losses).view(labels.shape).sum(dim=1)


class LossParts:
    """Sums of the parts between two logs, kept on the device.

    told_apart_by: an Objective's `loss_parts`; None: the loss has one part, and nothing is logged beside it but the
    "mtp_loss" of a model that has one.
    """

    def __init__(self, told_apart_by: Any | None):
        self.told_apart_by, self.sums = told_apart_by, {}

    def add(self, outputs, batch: dict, num_items_in_batch) -> None:
        """Add a batch; num_items_in_batch: by which the model has divided its loss, None for the batch's labels."""
        found = {} if self.told_apart_by is None else self.told_apart_by.sums(outputs, batch, num_items_in_batch)
        outputs = outputs if hasattr(outputs, "get") else {}
        found = found | (outputs.get("loss_parts") or {})  # of a loss of the objective (objectives/losses.py)
        ahead = outputs.get("mtp_loss")
        if ahead is not None:  # of modules that predict tokens further ahead
            count = batch["shift_labels" if "shift_labels" in batch else "labels"].ne(IGNORE_INDEX).sum()
            found["mtp_loss"] = (ahead.detach() * (count if num_items_in_batch is None else num_items_in_batch), count)
        self.sums = {name: self.sums.get(name, 0) + stacked(pair) for name, pair in found.items()}

    def collect(self, reduce) -> dict[str, float]:
        """{part: its mean over all processes since the last call}. reduce: sums a tensor over processes."""
        sums, self.sums = self.sums, {}
        return means(reduce(torch.stack(list(sums.values()))).tolist(), sums) if sums else {}


def stacked(pair) -> torch.Tensor:
    """(sum, count) as one tensor (2,)."""
    return torch.stack([torch.as_tensor(part).float() for part in pair])


def means(sums: list[list[float]], names) -> dict[str, float]:
    """{name: sum / count} of those that count something."""
    return {name: total / count for name, (total, count) in zip(names, sums) if count}
