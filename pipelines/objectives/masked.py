"""Masked language modelling over packed rows (Devlin et al. 2019, section 3.1)."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.types import show
from .base import pipeline_command
from .text import TextObjective, TextSettings


@dataclass
class MaskedSettings(TextSettings):
    begins_documents = True  # a text for an encoder begins with <|cls|>

    mask_probability: float = doc("share of a row's tokens that is predicted", 0.15, above=0, below=1)
    mask_replace: float = doc("share of those that the mask token hides", 0.8, at_least=0, at_most=1)
    random_replace: float = doc(
        "share of those that a random token replaces; the rest stays", 0.1, at_least=0, at_most=1
    )


@register_objective
class Masked(TextObjective):
    """Masked language modelling over packed rows (Devlin et al. 2019, section 3.1).

    Some tokens of each row are hidden, and predicted from those on both sides. Documents follow each other in a row,
    each attending to itself alone; where a row's end cuts one, the next row goes on with its next token. Raises
    UserError for a tokenizer without a mask token.
    """

    name = "masked"
    auto_class = "AutoModelForMaskedLM"
    families = ("encoder",)
    special_tokens = "cls_sep"
    hub_task = "fill-mask"
    loss_unit = "nats per masked token"
    Settings = MaskedSettings

    def check(self) -> None:
        super().check()
        section = self.settings
        if section.mask_replace + section.random_replace > 1:
            raise UserError(
                f"objective.mask_replace={show(section.mask_replace)} and "
                f"objective.random_replace={show(section.random_replace)} are shares of the same tokens; "
                f"together they must be at most 1"
            )

    def use_tokenizer(self, tokenizer) -> None:
        super().use_tokenizer(tokenizer)
        if self.tokenizer.mask_token_id is None:
            raise UserError(
                "objective.name=masked needs a tokenizer with a mask token; this one has none: "
                "remove tokenizer.name_or_path to train one, or name that of an encoder"
            )

    def config_fields(self) -> dict:
        return {name: getattr(self.tokenizer, name) for name in ("cls_token_id", "sep_token_id", "mask_token_id")}

    def collator(self, packed: bool) -> "MaskedCollator":
        section = self.settings
        return MaskedCollator(
            self.tokenizer,
            packed,
            mask_probability=section.mask_probability,
            mask_replace=section.mask_replace,
            random_replace=section.random_replace,
            seed=self.seed,
        )

    def how_to_use(self, folder: Path) -> str:
        return pipeline_command("fill-mask", folder, "your text")

    def legend(self):
        from .showing import PREDICTED, marked

        return marked(
            "what each token really is; a colour per document, │ where one ends: no attention across; predicted are ",
            ("⟦word⟧", PREDICTED),
            ": the model sees the mask token, ",
            ("⟦word→other⟧", PREDICTED),
            ": it sees another token, ",
            ("⟦word=⟧", PREDICTED),
            ": it sees the word itself; as in the first epoch, others in each further one",
        )

    def show(self, console, rows, number: int, row: dict) -> None:
        from .showing import documents_line, is_label, masked_table, masked_text, print_lines

        batch, documents = self.collated(rows, number, row), rows.documents(number, row)
        predicted = is_label(batch["labels"][0])
        seen, true = batch["input_ids"][0][predicted], row["input_ids"][predicted]
        hidden, kept = int((seen == self.tokenizer.mask_token_id).sum()), int((seen == true).sum())
        console.rule(
            f"row {number}: {len(row['input_ids'])} tokens, {len(seen)} predicted: {hidden} masked, "
            f"{len(seen) - hidden - kept} replaced, {kept} kept",
            align="left",
        )
        console.print(documents_line(documents), markup=False)
        console.print(masked_text(row, batch, documents, self.tokenizer))
        print_lines(console, masked_table(row, batch, self.tokenizer))


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
        import numpy as np

        self.packed, self.seed, self.mask_id = packed, seed, tokenizer.mask_token_id
        self.mask_probability, self.mask_replace, self.random_replace = mask_probability, mask_replace, random_replace
        special = np.array(tokenizer.all_special_ids)
        ids = np.array(sorted(tokenizer.get_vocab().values()))
        self.ordinary_ids = ids[~np.isin(ids, special)]
        self.is_special = np.zeros(ids[-1] + 1, dtype=bool)
        self.is_special[special] = True

    def __call__(self, rows: list[dict]) -> dict:
        import numpy as np
        import torch

        from ..data.batch_keys import IGNORE_INDEX
        from ..data.sample_ids import row_generators, row_ids

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
            padding = (tokens == IGNORE_INDEX) & (tokens != IGNORE_INDEX).any(
                axis=1, keepdims=True
            )  # not in rows that fill up
            if padding.any():
                batch["attention_mask"] = torch.from_numpy((~padding).astype(np.int64))
        return batch | row_ids(rows)

    def _hide(self, ids, labels, places, generator) -> None:
        """Choose among `places`, write the labels and change the ids there, in place (arrays, a numpy generator)."""
        import numpy as np

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
