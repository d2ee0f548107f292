"""Parts of a loss in the log: the loss of each task's rows, and that of each head where several losses are added."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from anyformer.modeling.lm_head import chunks, cross_entropy, shift_left

from ...data.batch_keys import IGNORE_INDEX


def parts_of_rows(rows) -> tuple[list[str], Callable[[int], str]] | None:
    """(names of the parts, sample id -> its part) of rows as they are trained or measured; None: no parts.

    Sample ids of rows without labels that only fill a batch go to the first part.

    rows: as in data/sample_ids.py.
    """
    names = list(getattr(rows.split, "parts", ()))  # rows of a plug-in may have no such attribute
    if not names:
        return None

    def part_of_id(number: int) -> str:
        inside = rows.number_in_split(number)
        return names[0] if inside is None else rows.split.place(inside)[0]

    return names, part_of_id


class PartLosses:
    """The summed losses of the rows of each part, kept on the device.

    Means are per label and without label smoothing, so that those of training and validation can be compared.
    parts, part_of: as returned by parts_of_rows. shifts_labels: as for AnyformerTrainer. sums: the tensor (parts, 2) to
    which losses and counts are added; None: it is made in float32 on the device of the losses.
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
        """Add a batch: logits (B, T, V), read only if row_losses (B,) is None; labels (B, T); row numbers (B,)."""
        if self.shifts_labels:  # shifting the logits would copy them
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
        """{"loss_trec": mean over all processes since the last call, ...}. reduce: sums a tensor over processes."""
        if self.sums is None:
            return {}
        sums, self.sums = reduce(self.sums).tolist(), None
        return {f"loss_{name}": total / count for name, (total, count) in zip(self.parts, sums) if count}


def losses_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The summed loss of each row (B,), from logits (B, T, V) and labels (B, T) that are aligned with them."""
    losses = [cross_entropy(*chunk, "none") for chunk in chunks(logits.detach(), labels)]
    return torch.cat(losses).view(labels.shape).sum(dim=1)


class LossParts:
    """Sums of the parts of a loss between two logs, kept on the device.

    told_apart_by: `Learns.loss_parts`; None: the loss has one part. A model's "mtp_loss" and "loss_parts" are
    logged in either case.
    """

    def __init__(self, told_apart_by: Any | None):
        self.told_apart_by, self.sums = told_apart_by, {}

    def add(self, outputs, batch: dict, num_items_in_batch) -> None:
        """Add a batch. num_items_in_batch: divisor of the model's loss; None: the number of the batch's labels."""
        pairs = {} if self.told_apart_by is None else self.told_apart_by.sums(outputs, batch, num_items_in_batch)
        outputs = outputs if hasattr(outputs, "get") else {}
        pairs = pairs | (outputs.get("loss_parts") or {})  # from the objective's loss (objectives/losses.py)
        ahead = outputs.get("mtp_loss")
        if ahead is not None:  # the loss of modules that predict tokens further ahead
            count = batch["shift_labels" if "shift_labels" in batch else "labels"].ne(IGNORE_INDEX).sum()
            pairs["mtp_loss"] = (ahead.detach() * (count if num_items_in_batch is None else num_items_in_batch), count)
        self.sums = {name: self.sums.get(name, 0) + stacked(pair) for name, pair in pairs.items()}

    def collect(self, reduce) -> dict[str, float]:
        """{part: its mean over all processes since the last call}. reduce: sums a tensor over processes."""
        sums, self.sums = self.sums, {}
        return means(reduce(torch.stack(list(sums.values()))).tolist(), sums) if sums else {}


def stacked(pair) -> torch.Tensor:
    """(sum, count) as one tensor (2,)."""
    return torch.stack([torch.as_tensor(part).float() for part in pair])


def means(sums: list[list[float]], names) -> dict[str, float]:
    """{name: sum / count}, without names whose count is 0."""
    return {name: total / count for name, (total, count) in zip(names, sums) if count}
