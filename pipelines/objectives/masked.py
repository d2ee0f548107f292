from dataclasses import dataclass, replace
from typing import Any

from ..data.batch_keys import IGNORE_INDEX, PREFIX_MASK, row_generators, row_ids
from ..lazy import np, torch
from ..plugins import WHOLE_MODEL, WHOLE_ROWS, register_objective
from ..recipes.special_tokens import MASK
from .base import FamiliesWith, Objective, Planned
from .data import Data
from .looking_ahead import check_ahead, is_our_decoder
from .masking import (
    HIDDEN,
    WORDS,
    FillsMasks,
    MaskingSettings,
    TokenHider,
    check_masking,
    frame_ids,
    need_mask,
    show_hidden,
)
from .text import LearnsText, ReadsText, TextObjective, TextSettings, shifts_labels
from .tokens import Tokens


@dataclass
class MaskedSettings(MaskingSettings, TextSettings):
    begins_documents = True  # a text for an encoder begins with <|cls|>


class ReadsMasked(ReadsText):
    """Packed rows with hidden tokens."""

    legend = (
        "what each token really is; a colour per document, │ where one ends: no attention across; predicted are "
        + HIDDEN
    )

    def open(self):
        check_ahead(self.objective)
        return super().open()

    def _check(self, tokenizer: Any) -> None:
        need_mask(self.objective, tokenizer)

    def collator(self, data: Data, packed: bool) -> "MaskedCollator":
        return MaskedCollator(data.tokenizer, self.settings, self.seed, packed, shifts_labels(self.objective))

    def show(self, console, data, rows, number, row):
        title, documents = f"row {number}: {len(row['input_ids'])} tokens", rows.documents(number, row)
        show_hidden(console, data.tokenizer, title, row, self.collated(data, rows, number, row), documents)


class LearnsMasked(LearnsText):
    """Hidden tokens: labels stand beside them, also a decoder's, which predicts them at the token before."""

    def config_fields(self) -> dict[str, Any]:
        if self.shifts_labels:
            return {"mask_token_id": self.tokenizer.mask_token_id}
        return frame_ids(self.tokenizer)


def mask_of_decoder(objective: Objective) -> list[str]:
    """The token that a decoder needs; other families are pretrained with one."""
    return [MASK] if shifts_labels(objective) else []


@register_objective
class Masked(TextObjective):
    """Masked language modelling over packed rows (Devlin et al. 2019, section 3.1).

    Some tokens of each row are hidden, single ones or whole words (TokenHider), and predicted from those on both sides.
    Documents follow each other in a row, each attending only to itself; where a row's end cuts one, the next row goes
    on with its next token. Raises UserError for a tokenizer without a mask token.

    One of our decoders can learn it, too, as GPT-BERT does (Charpentier and Samuel 2024): tokens of a document see each
    other, and a hidden token is predicted at the token before it, so that `causal` rows can share the batches. A
    document's first token is then never hidden. AutoModelForMaskedLM loads such a decoder to fill in masks.
    """

    name = "masked"
    taught = "tokens"
    families = FamiliesWith("AutoModelForMaskedLM")
    tokens = Tokens("cls_sep", {"AutoModelForCausalLM": "none"}, further=mask_of_decoder)
    needs = frozenset({WHOLE_MODEL, WHOLE_ROWS})
    Settings = MaskedSettings
    Reads, Learns, Answers = ReadsMasked, LearnsMasked, FillsMasks
    continues_prompts = True
    words = replace(WORDS, loss="nats per masked token")

    @property
    def auto_class(self) -> str:
        return "AutoModelForCausalLM" if is_our_decoder(self.facts) else "AutoModelForMaskedLM"

    def check(self) -> None:
        super().check()
        check_masking(self)
        if self.facts.family is not None:
            check_ahead(self)

    def planned(self) -> Planned:
        return replace(super().planned(), labelled=self.settings.mask_probability)


class MaskedCollator:
    """Rows -> one batch: input_ids with hidden tokens, labels (B, T) that name them (-100 elsewhere).

    A TokenHider hides some of the tokens that are neither special nor padding. Which ones depends on the seed, the
    epoch and the row's number alone (data/batch_keys.py).

    packed: position_ids restart with each document and with padding, so that padding is a document of its own and no
    attention_mask is needed. Otherwise there is an attention_mask in batches with a padded row, and only there.
    by_decoder: rows are a decoder's, with a prefix_mask of all tokens but padding in place of an attention_mask.
    """

    def __init__(self, tokenizer, settings: MaskingSettings, seed: int, packed: bool, by_decoder: bool = False):
        self.packed, self.by_decoder, self.seed = packed, by_decoder, seed
        self.hider = TokenHider(tokenizer, settings)

    def __call__(self, rows: list[dict]) -> dict:
        input_ids = np.stack([row["input_ids"].numpy() for row in rows])
        tokens = np.stack([row["labels"].numpy() for row in rows])  # -100: padding
        labels = np.full_like(tokens, IGNORE_INDEX)
        choosable = (tokens != IGNORE_INDEX) & ~self.hider.is_special[input_ids]
        for place, (row, generator) in enumerate(zip(rows, row_generators(rows, self.seed))):
            begins = row["position_ids"].numpy() == 0
            self.hider.hide(input_ids[place], labels[place], choosable[place], generator, begins)
        batch = {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}
        if self.packed:
            batch["position_ids"] = torch.stack([row["position_ids"] for row in rows])
        if self.by_decoder:
            # True up to the row's last real token, also at tokens without a label before it.
            real = np.flip(np.logical_or.accumulate(np.flip(tokens != IGNORE_INDEX, 1), axis=1), 1)
            batch[PREFIX_MASK] = torch.from_numpy(real.astype(np.int64))
        elif not self.packed:
            # A row without any label only fills up a batch: none of its tokens counts as padding.
            padding = (tokens == IGNORE_INDEX) & (tokens != IGNORE_INDEX).any(axis=1, keepdims=True)
            if padding.any():
                batch["attention_mask"] = torch.from_numpy((~padding).astype(np.int64))
        return batch | row_ids(rows)
