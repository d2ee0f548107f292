"""Masked language modelling over packed rows (Devlin et al. 2019, section 3.1)."""

import numpy as np
import torch

from ..data.batch_keys import IGNORE_INDEX
from ..data.packing import PackedDataset, StreamingPackedDataset, TokenStore
from ..data.sample_ids import row_generators, row_ids
from ..errors import UserError
from ..recipes.schema import ObjectiveSection
from ..tokenizers.special_tokens import NEEDED


class MaskedObjective:
    """Some tokens of each row are hidden, and predicted from those on both sides.

    Documents follow each other in a row, each attending to itself alone; where a row's end cuts one, the next row goes
    on with its next token. Raises UserError for a tokenizer without a mask token.
    """

    auto_class = "AutoModelForMaskedLM"
    predicts_next = False
    framing = NEEDED["masked"]

    def __init__(self, section: ObjectiveSection, tokenizer, seed: int = 0):
        if tokenizer.mask_token_id is None:
            raise UserError(
                "objective.name=masked needs a tokenizer with a mask token; this one has none: "
                "remove tokenizer.name_or_path to train one, or name that of an encoder"
            )
        self.section, self.tokenizer, self.seed = section, tokenizer, seed

    def config_fields(self) -> dict:
        """Fields of a fresh model's config that belong to the objective."""
        return {name: getattr(self.tokenizer, name) for name in ("cls_token_id", "sep_token_id", "mask_token_id")}

    def rows(self, store: TokenStore, tail: str) -> PackedDataset:
        """Rows of `sequence_length` tokens from documents tokenised before; labels are the tokens themselves."""
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        length = self.section.sequence_length
        return PackedDataset(store, length, tail=tail, pad_token_id=pad, predicts_next=False)

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
            predicts_next=False,
        )

    def collator(self, packed: bool) -> "MaskedCollator":
        """packed: whether any row holds several documents."""
        section = self.section
        return MaskedCollator(
            self.tokenizer,
            packed,
            mask_probability=section.mask_probability,
            mask_replace=section.mask_replace,
            random_replace=section.random_replace,
            seed=self.seed,
        )


class MaskedCollator:
    """Rows -> one batch: input_ids with hidden tokens, labels (B, T) that name them (-100 elsewhere).

    Of a row's n tokens that are neither special nor padding exactly round(mask_probability * n) are labelled, at least
    one: where BERT throws a coin per token, each row has equally much to predict, and short ones always something. Each
    labelled token becomes the mask token with probability mask_replace, a random entry of the vocabulary that is
    not special with probability random_replace, and stays as it is otherwise. Which ones depends on the seed, the epoch
    and the row's number alone (data/sample_ids.py).

    packed: position_ids restart with each document and with padding, so that padding is a document of its own and no
    attention_mask is needed. Otherwise there is an attention_mask in batches with a padded row, and only there.
    """

    def __init__(
        self,
        tokenizer,
        packed: bool,
        *,
        mask_probability: float,
        mask_replace: float,
        random_replace: float,
        seed: int,
    ):
        self.packed, self.seed, self.mask_id = packed, seed, tokenizer.mask_token_id
        self.mask_probability, self.mask_replace, self.random_replace = mask_probability, mask_replace, random_replace
        special = np.array(tokenizer.all_special_ids)
        ids = np.array(sorted(tokenizer.get_vocab().values()))
        self.ordinary_ids = ids[~np.isin(ids, special)]
        self.is_special = np.zeros(ids[-1] + 1, dtype=bool)
        self.is_special[special] = True

    def __call__(self, rows: list[dict]) -> dict:
        input_ids = np.stack([row["input_ids"].numpy() for row in rows])
        tokens = np.stack([row["labels"].numpy() for row in rows])  # -100: padding
        labels = np.full_like(tokens, IGNORE_INDEX)
        choosable = (tokens != IGNORE_INDEX) & ~self.is_special[input_ids]
        for place, generator in enumerate(row_generators(rows, self.seed)):
            self._hide(input_ids[place], labels[place], np.flatnonzero(choosable[place]), generator)
        batch = {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}
        if self.packed:
            batch["position_ids"] = torch.stack([row["position_ids"] for row in rows])
        else:
            counted = tokens != IGNORE_INDEX
            padding = ~counted & counted.any(axis=1, keepdims=True)  # not in rows that fill up a batch
            if padding.any():
                batch["attention_mask"] = torch.from_numpy((~padding).astype(np.int64))
        return batch | row_ids(rows)

    def _hide(self, ids: np.ndarray, labels: np.ndarray, places: np.ndarray, generator: np.random.Generator) -> None:
        """Choose among `places`, write the labels and change the ids there, in place."""
        if not len(places):
            return
        number = max(1, round(self.mask_probability * len(places)))
        chosen = generator.permutation(places)[:number]
        labels[chosen] = ids[chosen]
        lot = generator.random(number)
        random_ids = self.ordinary_ids[generator.integers(len(self.ordinary_ids), size=number)]
        masked = lot < self.mask_replace
        replaced = ~masked & (lot < self.mask_replace + self.random_replace)
        ids[chosen] = np.where(masked, self.mask_id, np.where(replaced, random_ids, ids[chosen]))
