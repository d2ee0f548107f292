"""The matrix of positions x kinds of attention x norm placement x feed-forward x family x backend, cell by cell.

Legal cells run forward and backward on every backend, are saved and loaded, and pack documents without mixing them;
by default so many of them that each setting of a family is there, with `-m slow` each pair, and every one. Each illegal
cell is refused with its sentence. What is legal is asked of the table that users see (`anyformer list --legal`).
"""

import contextlib
import functools
import itertools
import re

import pytest
import torch
import transformers
from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import POSITION_SCHEMES
from anyformer.pipelines.cli.legality_table import Cell, cells, refusal
from anyformer.pipelines.recipes.introspection import family_names
from family_variants import a_share, close, config_class, exactness, positions_of, tokens
from huggingface_hub.errors import StrictDataclassClassValidationError

import anyformer

TINY = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "relative_attention_num_buckets": 8,
}
TEXT = {"vocab_size": 61, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 12, "patch_size": 4, "num_channels": 1}
FIELDS = dict.fromkeys(("decoder", "moe", "encoder"), TEXT) | {"seq2seq": TEXT | {"decoder_start_token_id": 1}}
FIELDS |= {"vit": IMAGE}
BACKENDS = ("eager", "sdpa", "flex_attention")
anyformer.register()


def config_of(cell: Cell, **more):
    return config_class(cell.family)(**(FIELDS[cell.family] | TINY | cell.fields | more))


def auto_class(family: str):
    return getattr(transformers, FAMILIES[f"anyformer_{family}"].pretraining)


def model_of(cell: Cell, **more):
    torch.manual_seed(0)
    model = auto_class(cell.family).from_config(config_of(cell, **more), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms, too, take part
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.double().eval()


def inputs_of(cell: Cell, batch=2, length=11, seed=0) -> dict:
    if cell.family == "vit":
        generator = torch.Generator().manual_seed(seed)
        return {"pixel_values": torch.randn(batch, 1, 12, 12, generator=generator)}
    ids = tokens(batch, length, TEXT["vocab_size"], seed)
    row = {"input_ids": ids}
    if cell.family == "seq2seq":
        row["decoder_input_ids"] = tokens(batch, max(1, length - 3), TEXT["vocab_size"], seed + 1)
    if cell.kind == "local_global_attention":
        row["global_attention_mask"] = (torch.arange(length) % 5 == 0).long().expand(batch, -1)
    return row


def labels_of(cell: Cell, inputs: dict) -> dict:
    if cell.family == "vit":
        return {"labels": torch.arange(len(inputs["pixel_values"])) % 2}
    return {"labels": inputs.get("decoder_input_ids", inputs["input_ids"])}


def logits(model, inputs) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def check_refused(cell: Cell) -> None:
    sentence = refusal(cell.family, TINY | FIELDS[cell.family] | cell.fields)
    with pytest.raises((ValueError, StrictDataclassClassValidationError), match=re.escape(sentence)):
        config_of(cell)


def check_computes(cell: Cell, folder) -> None:
    model, inputs = model_of(cell), inputs_of(cell)
    labels = labels_of(cell, inputs)
    loss = model(**inputs, **labels).loss
    loss.backward()
    assert torch.isfinite(loss)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert any("layers.0" in name for name in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    expected = logits(model, inputs)
    for backend in BACKENDS[1:]:
        model.set_attn_implementation(backend)
        with torch.compiler.set_stance("force_eager"):  # compiling flex attention takes seconds, for every cell
            close(logits(model, inputs), expected, exactness(model))
    model.set_attn_implementation("sdpa")
    if cell.family != "vit":
        check_packed(cell, model)
    model.save_pretrained(folder)
    loaded = auto_class(cell.family).from_pretrained(folder, attn_implementation="eager")
    close(logits(loaded, inputs), expected, exactness(model))


def check_packed(cell: Cell, model) -> None:
    """Documents in one row have the logits of documents alone."""
    lengths = (5, 4)
    rows = [inputs_of(cell, 1, length, seed) for seed, length in enumerate(lengths)]
    alone = [logits(model, row) for row in rows]
    row = {name: torch.cat([each[name] for each in rows], dim=1) for name in rows[0]}
    row["position_ids"] = positions_of(lengths)
    if cell.family == "seq2seq":
        row["decoder_position_ids"] = positions_of([each["decoder_input_ids"].shape[1] for each in rows])
    close(logits(model, row), torch.cat(alone, dim=1), exactness(model))


@functools.cache
def whole(family: str) -> list[Cell]:
    return list(cells(family))


def legal(family: str) -> list[Cell]:
    return [cell for cell in whole(family) if cell.refusal is None]


@functools.cache
def covering(size: int, family: str) -> list[Cell]:
    """Few legal cells, and in them all that stands in any of so many settings together: always the one with most new
    ones."""

    def met(cell: Cell) -> set:
        return set(itertools.combinations(enumerate((cell.position, cell.kind, cell.norm, cell.feed_forward)), size))

    rows = legal(family)
    missing, chosen = set().union(*map(met, rows)), []
    while missing:
        best = max(rows, key=lambda cell: len(met(cell) & missing))  # the first of equals: the same in every process
        chosen.append(best)
        missing -= met(best)
    return chosen


ROWS = {"each setting": functools.partial(covering, 1), "each pair": functools.partial(covering, 2), "whole": whole}


@pytest.mark.usefixtures("without_code_files")
@pytest.mark.parametrize("rows", a_share(ROWS, len(ROWS)))
@pytest.mark.parametrize("position", POSITION_SCHEMES)
@pytest.mark.parametrize("family", family_names())
def test_legal_cells_compute_the_same_on_every_backend_and_when_loaded_again(family, position, rows, tmp_path):
    for cell in ROWS[rows](family):
        if cell.position == position and cell.refusal is None:
            with named(cell):
                check_computes(cell, tmp_path)


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "whole"])
@pytest.mark.parametrize("family", family_names())
def test_every_illegal_cell_is_refused_with_its_sentence(family, every):
    """By default a fifteenth of the cells, and the first of each sentence."""
    told, illegal = set(), [cell for cell in whole(family) if cell.refusal is not None]
    for number, cell in enumerate(illegal):
        if number % every == 0 or cell.refusal not in told:
            with named(cell):
                check_refused(cell)
        told.add(cell.refusal)


@contextlib.contextmanager
def named(cell: Cell):
    """An error says in which cell it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(f"cell {cell}")
        raise
