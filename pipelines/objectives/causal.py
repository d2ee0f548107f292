"""Next-token prediction over packed rows."""

import torch

from ..data.packing import PackedDataset, StreamingPackedDataset, TokenStore
from ..data.sample_ids import row_ids
from ..recipes.schema import ObjectiveSection
from ..tokenizers.special_tokens import NEEDED


class CausalObjective:
    """Each token predicts the next one of its own document (Radford et al. 2018, eq. 1)."""

    auto_class = "AutoModelForCausalLM"
    predicts_next = True
    framing = NEEDED["causal"]

    def __init__(self, section: ObjectiveSection, tokenizer, seed: int = 0):
        self.section, self.tokenizer = section, tokenizer  # nothing here is random

    def rows(self, store: TokenStore, tail: str) -> PackedDataset:
        """Rows of `sequence_length` tokens from documents tokenised before."""
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        return PackedDataset(store, self.section.sequence_length, tail=tail, pad_token_id=pad)

    def stream(self, corpus) -> StreamingPackedDataset:
        """The same rows, tokenised and packed while training."""
        section = self.section
        return StreamingPackedDataset(
            corpus,
            self.tokenizer,
            section.sequence_length,
            tail=section.tail,
            add_bos=section.add_bos,
            add_eos=section.add_eos,
        )

    def collator(self, packed: bool) -> "CausalCollator":
        """packed: whether any row holds several documents."""
        return CausalCollator(packed)


class CausalCollator:
    """Rows -> one batch: input_ids, labels (B, T), and position_ids where rows hold several documents.

    There is never an attention_mask: nothing is padded with tokens that would have to be hidden, and a mask of ones
    would switch transformers' packed-row detection off. Without packing there are no position_ids either, and
    attention needs no mask at all.
    """

    def __init__(self, packed: bool):
        self.keys = ("input_ids", "labels", "position_ids") if packed else ("input_ids", "labels")

    def __call__(self, rows: list[dict]) -> dict:
        return {key: torch.stack([row[key] for row in rows]) for key in self.keys} | row_ids(rows)
