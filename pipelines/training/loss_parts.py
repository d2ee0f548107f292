"""The parts of a loss that several heads add up to, in the log of the training."""

from typing import Any

import torch


class LossParts:
    """Sums of the parts between two logs, kept on the device.

    told_apart_by: an Objective's `loss_parts`; None: the loss has one part, and nothing is logged beside it.
    """

    def __init__(self, told_apart_by: Any | None):
        self.told_apart_by, self.sums = told_apart_by, {}

    def add(self, outputs, batch: dict, num_items_in_batch) -> None:
        """Add a batch; num_items_in_batch: by which the model has divided its loss, None for the batch's labels."""
        if self.told_apart_by is None:
            return
        found = self.told_apart_by.sums(outputs, batch, num_items_in_batch)
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
