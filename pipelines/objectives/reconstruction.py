"""Base of objectives in which an encoder reads a corrupted row of text, and a decoder restores it or a part of it."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from ..data.batch_keys import IGNORE_INDEX, pad, real_places, row_generators, row_ids
from ..lazy import np
from ..plugins import WHOLE_MODEL, WHOLE_ROWS
from .data import Data
from .showing import show_source_and_target
from .text import TextObjective


class Reconstruction(TextObjective):
    """A subclass defines how long its rows are (`row_length`) and how a row is corrupted (`corrupt`).

    Rows are slices of one stream of documents, each ended by eos, as in T5: a row may hold the end of one document and
    the beginning of the next, and tokens attend to the whole row. Raises UserError for a tokenizer without eos or
    padding.
    """

    auto_class = "AutoModelForSeq2SeqLM"
    special_tokens = "eos"
    legend_words = (
        "source: what the encoder reads, [predicted]special tokens[/] where something was left out or moved; target: "
        "what the decoder has to write; as in the first epoch, other noise in each further one"
    )
    needs = frozenset({WHOLE_MODEL, WHOLE_ROWS})
    has_one_length = False  # whether all batches are padded to the lengths of full rows

    def use_tokenizer(self, tokenizer) -> None:
        super().use_tokenizer(tokenizer)
        self.need_tokens(eos="an end-of-text", pad="a padding")

    def config_fields(self) -> dict:
        """Each target begins with the padding token, as in T5."""
        return {"decoder_start_token_id": self.tokenizer.pad_token_id}

    @abstractmethod
    def corrupt(
        self, tokens: "np.ndarray", starts: "np.ndarray", generator: "np.random.Generator"
    ) -> "tuple[np.ndarray, np.ndarray]":
        """(source, target) of one row of raw tokens, arrays of ids without eos.

        starts: positions in the row at which a document, or the rest of one, begins; the first is 0.
        """

    def collator(self, packed: bool) -> Callable[[list[dict]], dict]:
        lengths = self.batch_widths() if self.has_one_width or self.has_one_length else (None, None)
        return SourceTargetCollator(self.corrupt, self.tokenizer, self.seed, lengths)

    def show(self, console, rows, number: int, row: dict) -> None:
        show_source_and_target(console, Data(self, self.Reads(self), self.processor), rows, number, row)


class SourceTargetCollator:
    """Rows of raw tokens -> one batch: input_ids (B, T), labels (B, U).

    The model makes decoder_input_ids from the labels. Shorter sources and targets are padded, labels with -100; a batch
    with a padded source has an attention_mask. How a row is corrupted depends only on the seed, the epoch and the row's
    number (data/batch_keys.py).

    corrupt: Reconstruction.corrupt. lengths: T and U of every batch; None: those of the longest row in the batch.
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
