"""Sequence parallelism: Ulysses (sp, DeepSpeed's ALST), through accelerate's ParallelismConfig.

It gives each process a part of every row, and attends causally to the whole row without a mask. Packed documents would
see each other, so each row must hold one document.
"""

import torch
from torch.utils.data import Dataset

from ...data.batch_keys import EPOCH, ROW_IDS
from ...errors import UserError
from ...recipes.parallelism import FIELD, words_of
from ...recipes.schema import Recipe

ATTENTION = "sdpa"  # it is replaced; flash kernels find documents by position_ids only in batches of one row


def parallelism_config(recipe: Recipe):
    """accelerate's ParallelismConfig for the recipe; None where processes do not share rows."""
    settings = recipe.training.parallelism
    if settings is None or settings.sp == 1:
        return None
    from accelerate import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    sizes = {"dp_shard_size": settings.dp_shard, "dp_replicate_size": settings.dp_replicate}
    handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation=ATTENTION)
    return ParallelismConfig(sp_size=settings.sp, sp_backend="deepspeed", sp_handler=handler, **sizes)


def check_rows_can_be_shared(recipe: Recipe, rows: Dataset) -> None:
    """Raise UserError where processes share rows that hold several documents."""
    settings = recipe.training.parallelism
    if settings is not None and settings.sp > 1 and rows.is_packed:
        raise UserError(
            f"{FIELD}={words_of(settings)} attends to whole rows without a mask, and these rows hold several documents "
            f"each, which would see each other; train on one plain text file, which data.document=file takes as one "
            f"document, or share the model by dp_shard and tp"
        )


class PositionedRows:
    """A collator that adds the position of each token, and removes row numbers, which cannot be split like tokens.

    Without positions a part of a row would be taken for a whole row, whose positions begin at 0.
    """

    def __init__(self, collator):
        self.collator = collator

    def __call__(self, rows: list[dict]) -> dict:
        batch = {name: x for name, x in self.collator(rows).items() if name not in (ROW_IDS, EPOCH)}
        shape = batch["input_ids"].shape
        return {"position_ids": torch.arange(shape[1]).expand(shape).contiguous()} | batch
