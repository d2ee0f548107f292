from dataclasses import dataclass, replace

from ..data.batch_keys import row_ids
from ..data.cells import filled_text_of
from ..errors import UserError
from ..lazy import torch
from ..plugins import register_objective
from ..recipes.schema import doc
from .data import Data
from .text import Continues, ReadsText, TextObjective, TextSettings


@dataclass
class CausalSettings(TextSettings):
    evaluation_overlap: int = doc(
        "tokens that a row of validation and test text repeats of the row before, as context for the others: more give "
        "each predicted token more context, and take more rows (a sliding window)",
        1,
        at_least=1,
    )


class ReadsCausal(ReadsText):
    """Packed rows, every token of which is predicted."""

    def collator(self, data: Data, packed: bool) -> "CausalCollator":
        return CausalCollator(packed)


class ContinuesRows(Continues):
    """Prompts, and rows whose texts the model continues."""

    head = "AutoModelForCausalLM"

    def asked(self, row: dict, place: str) -> str:
        return filled_text_of(row, self.recipe.data.text_field, "text_field", place)

    def predict(self, finished, asked):
        from ..generation import ids_to_continue
        from .answering import continuations

        texts = continuations(finished, self.tokenizer, ids_to_continue(self.tokenizer, asked))
        return [{"prediction": text} for text in texts]


@register_objective
class Causal(TextObjective):
    """Next-token prediction over packed rows, each from those of its own document (Radford et al. 2018, eq. 1)."""

    Settings = CausalSettings
    Reads, Answers = ReadsCausal, ContinuesRows
    name = "causal"
    taught = "tokens"
    auto_class = "AutoModelForCausalLM"
    continues_prompts = True
    predicts_each_position = True
    needs = frozenset()
    words = replace(TextObjective.words, hub_task="text-generation", use='anyformer generate {folder} "your prompt"')

    def check(self) -> None:
        super().check()
        overlap, length = self.settings.evaluation_overlap, self.settings.sequence_length
        if overlap >= length:
            raise UserError(
                f"objective.evaluation_overlap={overlap} leaves no token to predict in a row of "
                f"objective.sequence_length={length}; it can be 1 to {length - 1}"
            )


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
