"""Weights that a checkpoint lacks are initialised: made from the meta device, all are finite, spread as configured."""

import tempfile
from collections.abc import Iterator

import torch

from ..findings import Finding, not_claimed, of_fact
from ..subject import Subject
from .saving_law import differing, tensors, unwritten_is_nan

FEW = 256  # the fewest values of which a standard deviation is compared


def ask(subject: Subject) -> Iterator[Finding]:
    like = subject.fresh()
    with unwritten_is_nan():
        built = type(like)._from_config(like.config)
        made = type(like).from_pretrained(None, config=like.config, state_dict={})
    here = dict(built.named_parameters())
    wrong = [name for name, p in made.named_parameters() if not p.isfinite().all()]
    yield of_fact("every weight is a number", not wrong, why=", ".join(wrong[:3]))
    apart = [name for name, p in made.named_parameters() if spread(p) and not alike(p, here[name])]
    yield of_fact(
        "weights made from the meta device are spread as those built at once", not apart, why=", ".join(apart[:3])
    )
    before = {name: buffer for name, buffer in built.named_buffers()}
    other = [
        n for n, x in made.named_buffers() if n in before and not torch.equal(x.nan_to_num(), before[n].nan_to_num())
    ]
    yield of_fact("buffers made from the meta device are those built at once", not other, why=", ".join(other[:3]))
    yield from fresh_head(like)
    wide = getattr(like.config.get_text_config(), "initializer_range", None)
    if not isinstance(wide, float):
        yield not_claimed("linear layers are spread by initializer_range", "its config has none")
        return
    layers = {name: module.weight for name, module in made.named_modules() if type(module) is torch.nn.Linear}
    off = [
        f"{n} {x.std():.3g}" for n, x in layers.items() if x.numel() >= FEW and not 0.7 * wide < x.std() < 1.4 * wide
    ]
    why = f"{', '.join(off[:3])} for {wide:g}"
    most = len(off) * 2 > len(layers)  # some classes scale by depth or start at zero on purpose
    yield of_fact("linear layers are spread by initializer_range", not most, why=why)


def fresh_head(model) -> Iterator[Finding]:
    """Load a checkpoint of the base model into a class that adds a head."""
    if model.base_model is model:
        return
    with tempfile.TemporaryDirectory() as folder, unwritten_is_nan():
        model.base_model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder, dtype=model.dtype)
    wrong = [name for name, p in loaded.named_parameters() if not p.isfinite().all()]
    wrong += differing(tensors(model.base_model), tensors(loaded.base_model.to(model.device)))
    yield of_fact("a base model's checkpoint under a fresh head", not wrong, why=", ".join(wrong[:3]))


def spread(parameter: torch.Tensor) -> float:
    """The standard deviation of a weight; 0 if it has fewer than FEW values."""
    return parameter.std().item() if parameter.numel() >= FEW else 0.0


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return 0.7 < spread(one) / max(spread(other), 1e-12) < 1.4
