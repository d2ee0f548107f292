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


class LossParts:
    """Sums of the parts of a loss, and of the losses of rows that belong to parts, kept on the device until the log.

    Means of rows are per label and without label smoothing, so that those of training and validation can be compared.

    Args:
        told_apart_by: `Learns.loss_parts`; None: the loss has one part. A model's "mtp_loss" and "loss_parts" are
            summed in either case.
        of_rows: as parts_of_rows gives it.
        shifts_labels: as for AnyformerTrainer.
        like: a tensor of whose kind the sums are; None: float32, on the device of the losses.
    """

    def __init__(
        self,
        told_apart_by: Any | None = None,
        of_rows: tuple[list[str], Callable[[int], str]] | None = None,
        shifts_labels: bool = True,
        like: torch.Tensor | None = None,
    ):
        self.told_apart_by, self.of_rows, self.shifts_labels, self.like = told_apart_by, of_rows, shifts_labels, like
        self.sums: dict[str, torch.Tensor] = {}  # (sum, count); replaced, and never changed in place

    def add(self, outputs, batch: dict, num_items_in_batch) -> dict[str, torch.Tensor]:
        """Add a batch; returns its sums. num_items_in_batch: divisor of the model's loss; None: its labels' number."""
        pairs = {} if self.told_apart_by is None else self.told_apart_by.sums(outputs, batch, num_items_in_batch)
        outputs = outputs if hasattr(outputs, "get") else {}
        pairs = pairs | (outputs.get("loss_parts") or {})  # from the objective's loss (objectives/losses.py)
        ahead = outputs.get("mtp_loss")
        if ahead is not None:  # the loss of modules that predict tokens further ahead
            count = batch["shift_labels" if "shift_labels" in batch else "labels"].ne(IGNORE_INDEX).sum()
            pairs["mtp_loss"] = (ahead.detach() * (count if num_items_in_batch is None else num_items_in_batch), count)
        return self._add({name: torch.stack([torch.as_tensor(part).float() for part in pairs[name]]) for name in pairs})

    @torch.no_grad()
    def add_rows(self, logits, row_losses: torch.Tensor | None, labels: torch.Tensor, rows: Sequence[int]) -> None:
        """Add a batch's rows: logits (B, T, V), read only if row_losses (B,) is None; labels (B, T); row numbers (B,).

        Nothing is added where rows belong to no parts.
        """
        if self.of_rows is None:
            return
        if self.shifts_labels:  # shifting the logits would copy them
            labels = shift_left(labels)
        if row_losses is None:
            row_losses = losses_of(logits, labels)
        of_rows = torch.stack([row_losses, labels.ne(IGNORE_INDEX).sum(dim=1).to(row_losses)], dim=1)
        numbers = rows.tolist() if torch.is_tensor(rows) else rows
        names, part_of = self.of_rows
        places = torch.tensor([names.index(part_of(int(number))) for number in numbers])
        places = places.to(row_losses.device, non_blocking=True)
        sums = of_rows.new_zeros(len(names), 2).index_add_(0, places, of_rows)
        self._add({f"loss_{name}": pair for name, pair in zip(names, sums)})

    def _add(self, pairs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.like is not None:
            pairs = {name: pair.to(self.like) for name, pair in pairs.items()}
        self.sums = self.sums | {name: self.sums.get(name, 0) + pair for name, pair in pairs.items()}
        return pairs

    def collect(self, reduce) -> dict[str, float]:
        """{part: its mean over all processes since the last call}, without parts of no label.

        reduce: sums a tensor over processes.
        """
        sums, self.sums = self.sums, {}
        if not sums:
            return {}
        pairs = reduce(torch.stack(list(sums.values()))).tolist()
        return {name: total / count for name, (total, count) in zip(sums, pairs) if count}


def losses_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The summed loss of each row (B,), from logits (B, T, V) and labels (B, T) that are aligned with them."""
    losses = [cross_entropy(*chunk, "none") for chunk in chunks(logits.detach(), labels)]
    return torch.cat(losses).view(labels.shape).sum(dim=1)
