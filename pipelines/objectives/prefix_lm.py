from dataclasses import replace
from typing import Any

from ..data.batch_keys import IGNORE_INDEX, PREFIX_MASK, document_parts, row_generators
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from .base import FamiliesWith
from .causal import Causal, CausalCollator
from .data import Data
from .reconstruction import NEEDS, SEQ2SEQ, Corruption, LearnsToRestore, ReadsCorrupted
from .text import (
    LearnsText,
    ReadsText,
    TextObjective,
    check_ahead,
    has_encoder,
    is_our_decoder,
    shifts_labels,
    show_packed,
)
from .tokens import Tokens


class ReadsPrefixes(ReadsText):
    """Packed rows for a decoder, which sees a prefix of each document in both directions."""

    def open(self):
        if not is_our_decoder(self.facts):
            name = self.recipe.model.name_or_path
            raise UserError(
                f"model.name_or_path={name!r} ({self.facts.config.model_type}) is causal throughout, and "
                f"{self.objective.setting} shows a prefix in both directions; learn causal, or convert it, where it "
                f"has a twin, with anyformer convert {name} FOLDER"
            )
        check_ahead(self.objective)
        return super().open()

    def collator(self, data: Data, packed: bool) -> "PrefixCollator":
        return PrefixCollator(packed, self.seed)

    def show(self, console, data, rows, number, row):
        row = row | {"labels": self.collated(data, rows, number, row)["labels"][0]}
        show_packed(console, data.tokenizer, number, row, rows.documents(number, row))


class LearnsPrefixes(LearnsText):
    """The rest of each document; `generate` reads prompts as prefixes, by the model's config."""

    def config_fields(self) -> dict[str, Any]:
        return {"prefix_lm": True}


class CutsOff(Corruption):
    """(a prefix of the row, the rest)."""

    def __call__(self, tokens, starts, generator) -> tuple:
        cut = prefix_length(len(tokens), generator)
        return tokens[:cut], tokens[cut:]


@register_objective
class PrefixLM(TextObjective):
    """Prefix language modelling (Raffel et al. 2020, section 3.2.1): the rest of a text from its beginning.

    A text is cut at a random place, so that the prefix, which is read, and the rest, which is predicted, have at least
    one token each; a text of one token is all prefix. An encoder-decoder's encoder reads the prefix of a row, and its
    decoder writes the rest (rows as in reconstruction.py). A decoder cuts each document of a packed row: attention is
    bidirectional in the prefix and causal after it, and only the rest counts in the loss; its config says prefix_lm,
    by which `generate` reads prompts as prefixes. The model's family, or the checkpoint's config, says which it is.
    Raises UserError for a decoder that is not one of ours, or has attention in which no token can see a later one.
    """

    name = "prefix_lm"
    families = FamiliesWith(Causal.auto_class, SEQ2SEQ)
    tokens = Tokens(of_head={SEQ2SEQ: "eos"})
    needs = NEEDS
    Corruption = CutsOff
    continues_prompts = True
    words = replace(Causal.words, hub_task=None)

    @property
    def auto_class(self) -> str:
        return SEQ2SEQ if has_encoder(self.facts) else Causal.auto_class

    @property
    def Reads(self) -> type:
        return ReadsPrefixes if shifts_labels(self) else ReadsCorrupted

    @property
    def Learns(self) -> type:
        return LearnsPrefixes if shifts_labels(self) else LearnsToRestore

    def check(self) -> None:
        super().check()
        if self.facts.family is not None:
            check_ahead(self)


class PrefixCollator(CausalCollator):
    """CausalCollator, plus a prefix of each document in a row: `prefix_mask` is 1 there, and there are no labels."""

    def __init__(self, packed: bool, seed: int):
        super().__init__(packed)
        self.seed = seed

    def __call__(self, rows: list[dict]) -> dict:
        batch = super().__call__(rows)
        batch[PREFIX_MASK] = torch.zeros_like(batch["labels"])
        for place, (row, generator) in enumerate(zip(rows, row_generators(rows, self.seed))):
            labels, prefixes = batch["labels"][place], batch[PREFIX_MASK][place]
            for begin, end in document_parts(row["position_ids"].numpy()):
                cut = begin + prefix_length(end - begin, generator)
                prefixes[begin:cut] = bool((labels[begin:end] != IGNORE_INDEX).any())  # padding is no prefix
                labels[begin:cut] = IGNORE_INDEX
        return batch


def prefix_length(length: int, generator) -> int:
    """Random length of the prefix of a text of `length` tokens: from 1 to length - 1, and 1 of a single token."""
    return int(generator.integers(1, max(length - 1, 1) + 1))
