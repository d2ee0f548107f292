"""New tokens in the vocabulary change no output for the old ones; tied weights stay tied, and the model trains."""

import tempfile
from collections.abc import Iterator

import torch

from ..findings import Finding, not_claimed, of_fact
from ..subject import Subject
from .saving_law import loaded_from, tied_names

MUST_RUN = True
NEEDS = ("input_ids",)
MORE = 11


def unclaimed(subject: Subject) -> str:
    try:
        table = subject.fresh().get_input_embeddings()
    except NotImplementedError:
        table = None
    return "" if isinstance(table, torch.nn.Embedding) else "its get_input_embeddings gives no table"


def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.rows()
    with torch.no_grad():
        expected, tied = model(**batch).logits, tied_names(model)
    size = model.get_input_embeddings().weight.shape[0] + MORE
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        logits = model(**batch).logits
    entries = expected.shape[-1]
    yield of_fact("the table of inputs has the new size", model.get_input_embeddings().weight.shape[0] == size)
    yield of_fact("the logits have the new size", logits.shape[-1] == entries + MORE)
    yield subject.compared("outputs for the tokens there were", logits[..., :entries], expected)
    yield of_fact("what was tied is tied", tied_names(model) == tied)
    yield from saved(subject, model, batch, logits)
    if missing := subject.lacks("labels"):
        yield not_claimed("it trains", missing)
    else:
        loss = model.train()(**subject.labelled()).loss
        loss.backward()
        yield of_fact("it trains", bool(loss.isfinite()))


@torch.no_grad()
def saved(subject: Subject, model, batch: dict, logits: torch.Tensor) -> Iterator[Finding]:
    """A resized model is saved and loaded unchanged."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded, wrong = loaded_from(folder, type(model), model)
    yield of_fact("saved and loaded it has every key", not wrong, why=wrong)
    yield subject.compared("saved and loaded it has the outputs", loaded(**batch).logits, logits)
    yield of_fact("and what was tied is tied", tied_names(loaded) == tied_names(model))
