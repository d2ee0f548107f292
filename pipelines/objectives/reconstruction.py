"""What objectives share in which an encoder reads a corrupted row, and a decoder restores it or a part of it.

Rows are slices of one stream of documents, each ended by eos, as in T5: a row may hold the end of one document and the
beginning of the next, and tokens attend to the whole row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ..data.batch_keys import IGNORE_INDEX, pad, real_places, row_generators, row_ids
from ..lazy import np
from ..plugins import WHOLE_MODEL, WHOLE_ROWS
from ..recipes.schema import ObjectiveSettings
from .base import Objective
from .data import Data
from .showing import show_source_and_target
from .text import LearnsText, ReadsText
from .tokens import need_tokens

SEQ2SEQ, NEEDS = "AutoModelForSeq2SeqLM", frozenset({WHOLE_MODEL, WHOLE_ROWS})


class Corruption(ABC):
    """How a row is corrupted. A subclass raises UserError for a tokenizer without the tokens that it needs.

    An objective names its class as `Corruption`. has_one_width: whether all batches are as wide as full rows make them.
    """

    has_one_width: bool = False

    def __init__(self, objective: Objective, tokenizer: Any):
        self.settings, self.tokenizer = objective.settings, tokenizer

    @classmethod
    def row_length(cls, settings: ObjectiveSettings) -> int:
        """Tokens of text in a row."""
        return settings.sequence_length

    @abstractmethod
    def __call__(
        self, tokens: "np.ndarray", starts: "np.ndarray", generator: "np.random.Generator"
    ) -> "tuple[np.ndarray, np.ndarray]":
        """(source, target) of one row of raw tokens, arrays of ids without eos.

        starts: positions in the row at which a document, or the rest of one, begins; the first is 0.
        """


class ReadsCorrupted(ReadsText):
    """Packed rows, corrupted; the objective's `Corruption` says how. UserError for a tokenizer without eos or pad."""

    legend = (
        "source: what the encoder reads, [predicted]special tokens[/] where something was left out or moved; target: "
        "what the decoder has to write (without colours in [[ ]]); as in the first epoch, other noise in each further "
        "one"
    )

    def _check(self, tokenizer: Any) -> None:
        need_tokens(self.objective, tokenizer, eos="an end-of-text", pad="a padding")
        self.objective.Corruption(self.objective, tokenizer)

    @property
    def _row_length(self) -> int:
        return self.objective.Corruption.row_length(self.settings)

    def _widths(self) -> tuple[int, int]:
        return self.objective.planned().lengths

    def collator(self, data: Data, packed: bool) -> "SourceTargetCollator":
        corrupt = self.objective.Corruption(self.objective, data.tokenizer)
        lengths = self._widths() if self._has_one_width or corrupt.has_one_width else (None, None)
        return SourceTargetCollator(corrupt, data.tokenizer, self.seed, lengths)

    show = show_source_and_target


class LearnsToRestore(LearnsText):
    """What a decoder writes: each target begins with the padding token, as in T5."""

    def config_fields(self) -> dict[str, Any]:
        return {"decoder_start_token_id": self.tokenizer.pad_token_id}


class SourceTargetCollator:
    """Rows of raw tokens -> one batch: input_ids (B, T), labels (B, U).

    The model makes decoder_input_ids from the labels. Shorter sources and targets are padded, labels with -100; a batch
    with a padded source has an attention_mask. How a row is corrupted depends only on the seed, the epoch and the row's
    number (data/batch_keys.py).

    corrupt: a Corruption. lengths: T and U of every batch; None: those of the longest row in the batch.
    """

    def __init__(self, corrupt: Callable, tokenizer, seed: int, lengths: Sequence[int | None]):
        self.eos, self.pad, self.seed = tokenizer.eos_token_id, tokenizer.pad_token_id, seed
        self.corrupt, (self.input_length, self.target_length) = corrupt, lengths

    def __call__(self, rows: list[dict]) -> dict:
        sources, targets = [], []
        for row, generator in zip(rows, row_generators(rows, self.seed)):
            real = row["labels"].numpy() != IGNORE_INDEX
            tokens = row["input_ids"].numpy()
            tokens = tokens[real] if real.any() else tokens
            starts = np.flatnonzero(row["position_ids"].numpy()[: len(tokens)] == 0)
            source, target = self.corrupt(tokens, starts, generator)
            sources.append(np.append(source, self.eos))
            targets.append(np.append(target, self.eos))
            if not real.any():  # a row without labels only fills up a batch
                targets[-1][:] = IGNORE_INDEX
        batch = {
            "input_ids": pad(sources, self.pad, width=self.input_length),
            "labels": pad(targets, IGNORE_INDEX, width=self.target_length),
        }
        inside = real_places(list(map(len, sources)), batch["input_ids"].shape[1])
        return batch | ({} if inside.all() else {"attention_mask": inside.long()}) | row_ids(rows)
