"""Which row a row is: what makes an objective's randomness the same again after a kill, on other workers, alone."""

import numpy as np
import torch


def row_generators(rows: list[dict], seed: int) -> list[np.random.Generator]:
    """A generator for each row, a pure function of the seed, the row's `epoch` and its number `row_ids`.

    So a row is changed alike in every batch, process and worker, after a resumption too, and otherwise in each epoch. A
    row without a number counts by its place, from 0; one without an epoch is in epoch 0.
    """
    return [
        np.random.default_rng((seed, int(row.get("epoch", 0)), int(row.get("row_ids", place))))
        for place, row in enumerate(rows)
    ]


def row_ids(rows: list[dict]) -> dict:
    """{"row_ids": the numbers of numbered rows}, or nothing. A stream's are a tensor: accelerate sends its batches on
    to other processes, and can only do so with tensors."""
    if "row_ids" not in rows[0]:
        return {}
    ids = [row["row_ids"] for row in rows]
    return {"row_ids": torch.stack(ids) if torch.is_tensor(ids[0]) else ids}
