"""Whether a native model keeps the documents of a packed row apart, as our own families do."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from anyformer.modeling.attention_masks import document_ids_from_positions, flash_sequences
from anyformer.modeling.families import FAMILIES

from ..backends import is_flash
from ..data.rows import Rows, packed_row
from ..errors import UserError
from ..positions import position_tables
from .data import Data

PROBED_TOKENS = 8  # of each of two documents
EXPERTS_TOLERANCE = 1e-2  # relative to the largest logit: rounding of experts' products in bfloat16


def check_documents_apart(model, name: str, data: Data, splits: Iterable[Rows], section: str = "model") -> None:
    """Raise UserError where a document of a packed row sees the one before it in a native model.

    In packed rows position_ids begin anew with each document. Some native models ignore that, and all do if they get an
    attention_mask of ones; so a model is probed with the inputs that the data's collator makes. splits: rows, some
    of them packed. section: the recipe's section that names the model. ZeRO-3's empty tensors are not probed.
    """
    config = model.config
    in_parts = any(hasattr(p, "ds_shape") for p in model.parameters())
    if config.model_type in FAMILIES or config.is_encoder_decoder or in_parts:
        return
    begin_behind_padding(model)
    if is_flash(config._attn_implementation):
        model.register_forward_pre_hook(with_borders, with_kwargs=True)
    if keeps_documents_apart(model, data.reads.collated(data, *packed_row(splits)).keys()):
        return
    raise UserError(
        f"{section}.name_or_path={name!r} is a {type(model).__name__}, in which the documents of a packed row see each "
        f"other; set task.packing=false where the task has that, or convert it, where it has a twin, with anyformer "
        f"convert {name} FOLDER"
    )


def begin_behind_padding(model) -> None:
    """Let position_ids, which count from 0, mean the same rows of the table as the model's own positions (RoBERTa)."""
    for name, table in position_tables(model):
        parent = model.get_submodule(name.rpartition(".")[0])
        if getattr(table, "padding_idx", None) is None or hasattr(parent, "first_position"):
            continue
        parent.first_position = table.padding_idx + 1

        def shift(module, args, given):
            if given.get("position_ids") is not None:
                given["position_ids"] = given["position_ids"] + module.first_position
            return args, given

        parent.register_forward_pre_hook(shift, with_kwargs=True)


def with_borders(model, args: tuple, given: dict) -> tuple:
    """Add the borders of packed documents to a model's inputs: flash kernels find them in a single row alone."""
    positions, *others = (given.get(name) for name in ("position_ids", "attention_mask", "past_key_values"))
    if positions is not None and others == [None, None]:
        given = given | flash_sequences(document_ids_from_positions(positions), None)
    return args, given


@torch.no_grad()
def keeps_documents_apart(model, sent: Collection[str] = ("input_ids", "position_ids")) -> bool:
    """Whether the second document of a row has the same logits, to the bit, behind two different first documents.

    Two such rows are read, since a kernel may know the documents of a single one. Of experts logits are alike: how a
    product is rounded depends on how many tokens an expert gets. sent: names of the inputs to pass.
    """
    training = model.training
    model.eval()
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(2 * PROBED_TOKENS, device=model.device)[None] % vocabulary
    ids = ids.repeat(2, 1)
    positions = torch.arange(PROBED_TOKENS, device=model.device).repeat(2, 2)
    half = torch.autocast(ids.device.type, torch.bfloat16, enabled=is_flash(model.config._attn_implementation))
    row = {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones_like(ids)}
    row = {name: x for name, x in row.items() if name in sent}
    exchanged = row | {"input_ids": torch.cat([(ids[:, :PROBED_TOKENS] + 1) % vocabulary, ids[:, PROBED_TOKENS:]], 1)}
    try:
        # transformers detects packed rows, by their positions, only where no cache is made
        with half, without_cache(model):
            one, other = (model(**each).logits[:, PROBED_TOKENS:] for each in (row, exchanged))
    except TypeError:  # the model takes no position_ids
        return False
    finally:
        model.train(training)
    has_experts = any(name.endswith("experts") for name, _ in model.named_modules())
    tolerance = EXPERTS_TOLERANCE * one.abs().max().item() if has_experts else 0.0
    return (one - other).abs().max().item() <= tolerance


@contextmanager
def without_cache(model) -> Iterator[None]:
    """A block in which the model's forward pass makes no cache of keys and values, which a loss does not need."""
    use_cache = getattr(model.config, "use_cache", None)
    if use_cache is not None:
        model.config.use_cache = False
    try:
        yield
    finally:
        if use_cache is not None:
            model.config.use_cache = use_cache
