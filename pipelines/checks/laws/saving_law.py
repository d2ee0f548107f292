"""A saved model is loaded bit by bit: weights, buffers, ties and outputs, from several shards; no key is missing."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from ..findings import Finding, of_fact
from ..subject import Subject

MUST_RUN = True
STEPS = (
    "model.save_pretrained('saved')",
    "again, facts = type(model).from_pretrained('saved', output_loading_info=True)",
    "print(facts, [n for n, x in model.state_dict().items() if not torch.equal(x, again.state_dict()[n])])  # empty",
)


def unclaimed(subject: Subject) -> str:
    return ""


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.rows()
    expected, tied = model(**batch).logits, tied_names(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="100KB")
        files = sorted(path.name for path in Path(folder).glob("model*.safetensors"))
        loaded, facts = type(model).from_pretrained(folder, output_loading_info=True, dtype=model.dtype)
    loaded = loaded.to(model.device).eval()
    wrong = [f"{kind}: {', '.join(sorted(map(str, names))[:3])}" for kind, names in facts.items() if names]
    yield of_fact("no key is missing, unexpected or of another shape", not wrong, why="; ".join(wrong), steps=STEPS)
    yield of_fact("the files are safetensors", bool(files))
    here, there = model.state_dict(), loaded.state_dict()
    other = [name for name in here if name not in there or not torch.equal(here[name], there[name])]
    yield of_fact("weights and buffers are bit-equal", not other, why=", ".join(other[:3]), steps=STEPS)
    yield of_fact("what was tied is tied", tied_names(loaded) == tied, why=f"{tied} before", steps=STEPS)
    yield subject.compared("outputs", loaded(**batch).logits, expected, tolerance=0.0, steps=STEPS)


def tied_names(model) -> set[frozenset[str]]:
    """Groups of names that are one weight."""
    groups: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}
