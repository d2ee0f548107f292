"""Rows of different lengths as one row without padding, and back. B rows of T tokens, N of them real."""

from typing import NamedTuple

import torch

# Below this share of padding the copies cost more than the padding.
LEAST_PADDING = 0.05


class Unpadded(NamedTuple):
    """Where the real tokens of padded rows are.

    index (N,): their places among all B * T. position_ids (1, N). lengths: of the rows, as `varlen_sdpa` takes them.
    """

    index: torch.Tensor
    position_ids: torch.Tensor
    lengths: list[int]
    shape: tuple[int, int]

    @classmethod
    def of(cls, attention_mask: torch.Tensor) -> "Unpadded | None":
        """Read a (B, T) padding mask, on the host; None where there is too little padding, or some amid a text."""
        real_BT = attention_mask != 0
        index = real_BT.flatten().nonzero()[:, 0]
        if index.numel() > (1 - LEAST_PADDING) * real_BT.numel() or not index.numel():
            return None
        starts = real_BT[:, 0].long() + (real_BT[:, 1:] & ~real_BT[:, :-1]).sum(-1)
        lengths = real_BT.sum(-1)
        most_starts, lengths = int(starts.max()), [length for length in lengths.tolist() if length]
        if most_starts > 1:
            return None
        columns = torch.arange(attention_mask.shape[1], device=attention_mask.device).expand(real_BT.shape)
        return cls(index, columns.flatten()[index][None], lengths, tuple(real_BT.shape))

    def take(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (1, N, D)."""
        return x_BTD.expand(*self.shape, -1).flatten(0, 1).index_select(0, self.index)[None]

    def put_back(self, x_1ND: torch.Tensor) -> torch.Tensor:
        """(1, N, D) -> (B, T, D), zeros at padding."""
        padded = x_1ND.new_zeros(self.shape[0] * self.shape[1], x_1ND.shape[-1])
        return padded.index_copy(0, self.index, x_1ND[0]).unflatten(0, self.shape)
