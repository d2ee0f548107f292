"""Whether a native model keeps the documents of a packed row apart, as our own families do."""

import copy
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from anyformer.modeling.families import FAMILIES

from ..data.rows import Rows
from ..errors import UserError
from .base import Objective

PROBED_TOKENS = 8  # of each of two documents
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2  # of the largest logit, in fp32 and in half: rounding, not another document


def check_documents_apart(
    model, name: str, objective: Objective, splits: Iterable[Rows], section: str = "model"
) -> None:
    """Raise UserError where a document of a packed row sees the one before it in a native model.

    Packed rows tell documents apart by positions that begin anew, without a mask. Native encoders, and decoders
    that make their mask without positions, ignore them; with a mask of ones all native models do. So a model is
    asked with what the objective's collator sends. splits: rows, some of them packed. section: that names the
    model. The weights have to be whole: ZeRO-3's empty tensors are not probed.
    """
    config = model.config
    in_parts = any(hasattr(p, "ds_shape") for p in model.parameters())
    if config.model_type in FAMILIES or config.is_encoder_decoder or in_parts:
        return
    if keeps_documents_apart(model, names_sent(objective, splits)):
        return
    raise UserError(
        f"{section}.name_or_path={name!r} is a {type(model).__name__}, in which the documents of a packed row see each "
        f"other; convert it (anyformer convert {name} FOLDER), or set task.packing=false where the task has that"
    )


def names_sent(objective: Objective, splits: Iterable[Rows]) -> Collection[str]:
    """The names of what the objective's collator makes of a packed row: the last one, which may hold padding."""
    rows = min((rows for rows in splits if rows.is_packed), key=lambda rows: rows.is_stream)
    if rows.is_stream:
        return objective.collated(rows, 0, next(iter(copy.deepcopy(rows)))).keys()
    return objective.collated(rows, len(rows) - 1, rows[len(rows) - 1]).keys()


@torch.no_grad()
def keeps_documents_apart(model, sent: Collection[str] = ("input_ids", "position_ids")) -> bool:
    """Whether the logits of the second document of a row are those that it has by itself. sent: names of inputs."""
    training = model.training
    model.eval()
    ids = torch.arange(2 * PROBED_TOKENS, device=model.device)[None] % model.config.get_text_config().vocab_size
    positions = torch.arange(PROBED_TOKENS, device=model.device)[None]
    row = {"input_ids": ids, "position_ids": positions.repeat(1, 2), "attention_mask": torch.ones_like(ids)}
    row = {name: x for name, x in row.items() if name in sent}
    try:
        with without_cache(model):  # transformers tells packed rows by their positions where no cache is made
            together = model(**row).logits[:, PROBED_TOKENS:]
            alone = model(**{name: x[:, PROBED_TOKENS:] for name, x in row.items()}).logits
    except TypeError:  # it takes no positions
        return False
    finally:
        model.train(training)
    tolerance = TOLERANCE if alone.dtype == torch.float32 else HALF_TOLERANCE
    return (together - alone).abs().max().item() <= tolerance * alone.abs().max().item()


@contextmanager
def without_cache(model) -> Iterator[None]:
    """A block in which a model's forward pass keeps no keys and values, for which a loss has no use."""
    kept = getattr(model.config, "use_cache", None)
    if kept is not None:
        model.config.use_cache = False
    try:
        yield
    finally:
        if kept is not None:
            model.config.use_cache = kept
