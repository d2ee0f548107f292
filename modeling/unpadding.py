"""Padded rows as one row without padding: each text is a document of it, which sees itself alone.

Shapes: B rows, T tokens, N the real tokens of all rows, D channels.
"""

from typing import NamedTuple

import torch

# Below this share of padding the copies cost more than the padding.
LEAST_PADDING = 0.05


# On a CPU oneDNN keeps memory for every number of rows that it has multiplied, and the allocator finds no room of the
# right size among what earlier steps left: with a new number at each step a run grows by gigabytes.
ROWS_MULTIPLE, FEWEST_ROWS = 128, 1024


def rounded_up(rows: int) -> int:
    """The number of rows to compute for `rows` on a CPU: one of few numbers, at most an eighth more."""
    return rows if rows < FEWEST_ROWS else -(-rows // ROWS_MULTIPLE) * ROWS_MULTIPLE


class Unpadded(NamedTuple):
    """Indices of the real tokens of padded rows.

    index (N,): among all B * T, row by row, the shortest row first, then some padding (see `rounded_up`).
    position_ids, documents (1, N): padding is one more document. tokens: how many of N are real.
    """

    index: torch.Tensor
    position_ids: torch.Tensor | None
    documents: torch.Tensor | None
    shape: tuple[int, int]
    tokens: int

    @classmethod
    def of(cls, attention_mask: torch.Tensor) -> "Unpadded | None":
        """Read a (B, T) padding mask, on the host; None where there is too little padding, or some amid a text."""
        real_BT = attention_mask != 0
        starts = real_BT[:, 0].long() + (real_BT[:, 1:] & ~real_BT[:, :-1]).sum(-1)
        starts, lengths = torch.stack((starts, real_BT.sum(-1))).tolist()  # together: the host waits once
        tokens = sum(lengths)
        if not 0 < tokens <= (1 - LEAST_PADDING) * real_BT.numel() or max(starts) > 1:
            return None
        order = torch.tensor(sorted(range(len(lengths)), key=lengths.__getitem__))
        row, column = real_BT[order].nonzero(as_tuple=True)
        index = order[row] * real_BT.shape[1] + column
        filler = rounded_up(tokens) - tokens
        if 0 < filler <= real_BT.numel() - tokens:
            index = torch.cat((index, real_BT.flatten().logical_not().nonzero()[:filler, 0]))
            row = torch.cat((row, row.new_full((filler,), len(lengths))))
        return cls(index, (index % real_BT.shape[1])[None], row[None], tuple(real_BT.shape), tokens)

    def take(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (1, N, D)."""
        return x_BTD.expand(*self.shape, -1).flatten(0, 1).index_select(0, self.index)[None]

    def put_back(self, x_1ND: torch.Tensor) -> torch.Tensor:
        """(1, N, D) -> (B, T, D), zeros at padding."""
        padded, real = x_1ND.new_zeros(self.shape[0] * self.shape[1], x_1ND.shape[-1]), slice(self.tokens)
        return padded.index_copy(0, self.index[real], x_1ND[0, real]).unflatten(0, self.shape)
