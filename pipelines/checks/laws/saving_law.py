"""A saved model is loaded bit by bit: weights, buffers, ties and outputs, from several shards; no key is missing."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils._device import _device_constructors

from ...patches import replaced
from ..findings import Finding, of_fact
from ..subject import Subject

MUST_RUN = True
STEPS = (
    "model.save_pretrained('saved'); again, facts = type(model).from_pretrained('saved', output_loading_info=True)",
    "print(facts)  # no names",
)
STEPS_OF_TENSORS = (
    "torch.use_deterministic_algorithms(True, warn_only=True); model.save_pretrained('saved')  # unwritten is nan",
    "here, there = [m.state_dict() | dict(m.named_buffers()) for m in (model, type(model).from_pretrained('saved'))]",
    "print([n for n, x in here.items() if not x.equal(there[n])])  # no names",
)
STEPS_OF_TIES = (
    STEPS[0],
    "print(len([*model.parameters()]) - len([*again.parameters()]))  # 0 if what was tied is tied",
)


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.rows()
    expected, tied = model(**batch).logits, tied_names(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="100KB")
        files = sorted(path.name for path in Path(folder).glob("model*.safetensors"))
        loaded, facts = loaded_from(folder, type(model), model)
        base, wrong_of_base = loaded_from(folder, type(model.base_model), model)
    yield of_fact("no key is missing, unexpected or of another shape", not facts, why=facts, steps=STEPS)
    yield of_fact("the files are safetensors", bool(files))
    other = differing(tensors(model), tensors(loaded))
    yield of_fact("weights and buffers are bit-equal", not other, why=", ".join(other[:3]), steps=STEPS_OF_TENSORS)
    yield of_fact("what was tied is tied", tied_names(loaded) == tied, why=f"{tied} before", steps=STEPS_OF_TIES)
    yield subject.compared("outputs", loaded(**batch).logits, expected, steps=STEPS_OF_TENSORS)
    if model.base_model is not model:
        other = differing(tensors(model.base_model), tensors(base))
        why = wrong_of_base or ", ".join(other[:3])
        yield of_fact("the base model is loaded from the same files, bit-equal", not other, why=why)


@contextlib.contextmanager
def unwritten_is_nan():
    """Let torch.empty and empty_like return nan on the CPU, so that a weight or buffer that was never set shows."""
    # torch caches which functions `with torch.device("meta")` intercepts. If the first call came inside this context,
    # the cache would hold the functions below, and later models would be allocated on the CPU instead of meta.
    _device_constructors()

    def filling(original):
        def make(*args, **kwargs):
            out = original(*args, **kwargs)
            if out.is_floating_point() and out.device.type == "cpu":
                out.fill_(float("nan"))
            return out

        return make

    with replaced(torch, empty=filling(torch.empty), empty_like=filling(torch.empty_like)):
        yield


def loaded_from(folder: str, cls: type, like):
    """(the loaded model, the problems that transformers reports); uninitialised memory is nan."""
    with unwritten_is_nan():
        loaded, facts = cls.from_pretrained(folder, output_loading_info=True, dtype=like.dtype)
    wrong = [f"{kind}: {', '.join(sorted(map(str, names))[:3])}" for kind, names in facts.items() if names]
    return loaded.to(like.device).eval(), "; ".join(wrong)


def tensors(model) -> dict[str, torch.Tensor]:
    """Weights and buffers, including those that are not saved."""
    return model.state_dict() | dict(model.named_buffers())


def differing(here: dict[str, torch.Tensor], there: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that `there` lacks or that are not bit-equal."""
    return [name for name in here if name not in there or not torch.equal(here[name], there[name])]


def tied_names(model) -> set[frozenset[str]]:
    """Groups of names that share one weight."""
    groups: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}
