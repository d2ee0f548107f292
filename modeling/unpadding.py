"""Stacks that read padded texts: on CPUs padded rows run as one row without padding, of which each text is a document.

Shapes: B rows, T tokens, N the real tokens of all rows, D channels.
"""

import dataclasses
from typing import NamedTuple

import torch

from .stack import Batch, TransformerStack
from .traits import POSITION_SCHEMES

# Below this share of padding the copies cost more than the padding.
LEAST_PADDING = 0.05


# On a CPU oneDNN keeps memory for every number of rows that it has multiplied, and the allocator finds no block of the
# right size among those of earlier steps: with a new number of rows at each step, memory grows by gigabytes.
ROWS_MULTIPLE, FEWEST_ROWS = 128, 1024


def rounded_up(rows: int) -> int:
    """The number of rows to compute for `rows` on a CPU: one of a few numbers, and at most an eighth more."""
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
        """Read a (B, T) padding mask, on the host; None if there is too little padding, or some amid a text."""
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

    def places_of(self, index_K: torch.Tensor) -> torch.Tensor:
        """The places among the N of the tokens with indices (K,) into all B * T."""
        places = torch.arange(self.index.numel(), device=self.index.device)
        return self.index.new_zeros(self.shape[0] * self.shape[1]).index_copy(0, self.index, places)[index_K]


class PaddedTextStack(TransformerStack):
    """A TransformerStack without a cache, for texts in padded rows. It returns zeros at padding."""

    def can_unpad(self, x_BTE, attention_mask, captured: dict) -> bool:
        """Whether rows of different lengths run as one row without padding.

        Not if outputs of each layer are captured, which have to keep the shape of padded rows.
        """
        outputs = ("output_hidden_states", "output_attentions", "output_router_logits")
        return (
            self.config._attn_implementation == "anyformer"  # others would make a mask of all tokens by all tokens
            and x_BTE.device.type == "cpu"
            and not torch.compiler.is_compiling()
            and attention_mask.dim() == 2
            and not POSITION_SCHEMES[self.config.position_encoding].adds_to_scores
            and all(kind.traits.separable for kind in self.layer_kinds.values())
            and getattr(self.config, "expert_capacity", None) is None  # counted row by row
            and not any(captured.get(name) or getattr(self.config, name, False) for name in outputs)
        )

    def read_batch(self, x_BTE, attention_mask=None, position_ids=None, **given) -> Batch:
        batch = super().read_batch(x_BTE, attention_mask, position_ids, **given)
        if attention_mask is None or position_ids is not None or batch.documents is not None:
            return batch
        rows = Unpadded.of(attention_mask) if self.can_unpad(x_BTE, attention_mask, given) else None
        if rows is None:
            return batch
        places = {"position_ids": rows.position_ids, "token_positions": rows.position_ids, "documents": rows.documents}
        return dataclasses.replace(batch, attention_mask=None, unpadded=rows, **places)

    def run_stack(self, x_BTE, batch: Batch, added_BTE=None, kept_tokens=None, **context) -> tuple:
        """As in TransformerStack. kept_tokens: (K,), indices into all B * T; the others' hidden states are zeros."""
        rows, selection = batch.unpadded, None
        if kept_tokens is not None:
            selection = Unpadded(kept_tokens, None, None, x_BTE.shape[:2], kept_tokens.numel())
            kept_tokens = kept_tokens if rows is None else rows.places_of(kept_tokens)
        if rows is not None:
            x_BTE, added_BTE = rows.take(x_BTE), None if added_BTE is None else rows.take(added_BTE)
        x_BTD, fields = super().run_stack(x_BTE, batch, added_BTE, kept_tokens=kept_tokens, **context)
        if selection is not None:
            x_BTD = selection.put_back(x_BTD)
        elif rows is not None:
            return rows.put_back(x_BTD), fields
        mask = batch.loss_mask
        if mask is not None and mask.dim() == 2:
            x_BTD = x_BTD.masked_fill((mask == 0)[..., None], 0.0)
        return x_BTD, fields
