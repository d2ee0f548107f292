from ..data.batch_keys import IGNORE_INDEX, document_parts, row_generators
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from .base import FamiliesWith
from .causal import Causal, CausalCollator
from .looking_ahead import PREFIX_MASK, LooksAhead
from .reconstruction import Reconstruction
from .text import TextObjective


@register_objective
class PrefixLM(LooksAhead, Reconstruction):
    """Prefix language modelling (Raffel et al. 2020, section 3.2.1): the rest of a text from its beginning.

    A text is cut at a random place, so that the prefix, which is read, and the rest, which is predicted, have at least
    one token each; a text of one token is all prefix. An encoder-decoder's encoder reads the prefix of a row, and its
    decoder writes the rest (rows as in reconstruction.py). A decoder cuts each document of a packed row: attention is
    bidirectional in the prefix and causal after it, and only the rest counts in the loss; its config says prefix_lm,
    by which `generate` reads prompts as prefixes. The model's family, or the checkpoint's config, says which it is.
    Raises UserError for a decoder that is not one of ours, or has attention in which no token can see a later one.
    """

    name = "prefix_lm"
    families = FamiliesWith(Causal.auto_class, Reconstruction.auto_class)
    special_tokens = "none"
    framing_of_head = {Reconstruction.auto_class: Reconstruction.special_tokens}
    continues_prompts = True
    use = Causal.use

    def open(self):
        if not self.has_encoder and not self.by_decoder:
            name = self.recipe.model.name_or_path
            raise UserError(
                f"model.name_or_path={name!r} ({self.config.model_type}) is causal throughout, and {self.setting} "
                f"shows a prefix in both directions; learn causal, or convert it, where it has a twin, with anyformer "
                f"convert {name} FOLDER"
            )
        return super().open()

    @property
    def auto_class(self) -> str:
        return Reconstruction.auto_class if self.has_encoder else Causal.auto_class

    @property
    def shifts_labels(self) -> bool:
        return not self.has_encoder

    def use_tokenizer(self, tokenizer) -> None:
        if self.has_encoder:
            super().use_tokenizer(tokenizer)
        else:
            TextObjective.use_tokenizer(self, tokenizer)

    def config_fields(self) -> dict:
        return super().config_fields() if self.has_encoder else {"prefix_lm": True}

    def collator(self, packed: bool):
        return super().collator(packed) if self.has_encoder else PrefixCollator(packed, self.seed)

    def corrupt(self, tokens, starts, generator) -> tuple:
        cut = prefix_length(len(tokens), generator)
        return tokens[:cut], tokens[cut:]

    @property
    def legend_words(self) -> str:
        return Reconstruction.legend_words if self.has_encoder else TextObjective.legend_words

    def show(self, console, rows, number: int, row: dict) -> None:
        if self.has_encoder:
            super().show(console, rows, number, row)
        else:
            TextObjective.show(
                self, console, rows, number, row | {"labels": self.collated(rows, number, row)["labels"][0]}
            )


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
