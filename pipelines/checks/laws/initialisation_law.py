"""Weights that a checkpoint lacks are drawn: from the meta device every one is a number, spread as the config says."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..findings import Finding, not_claimed, of_fact
from ..subject import Subject

FEW = 256  # numbers from which on a spread is told


def unclaimed(subject: Subject) -> str:
    return ""


def ask(subject: Subject) -> Iterator[Finding]:
    like = subject.fresh()
    with memory_of_nan():
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
    wide = getattr(like.config.get_text_config(), "initializer_range", None)
    if not isinstance(wide, float):
        yield not_claimed("linear layers are spread by initializer_range", "its config has none")
        return
    layers = {name: module.weight for name, module in made.named_modules() if type(module) is torch.nn.Linear}
    off = [
        f"{n} {x.std():.3g}" for n, x in layers.items() if x.numel() >= FEW and not 0.7 * wide < x.std() < 1.4 * wide
    ]
    why = f"{', '.join(off[:3])} for {wide:g}"
    most = len(off) * 2 > len(layers)  # some are scaled by depth, or start at zero, knowingly
    yield of_fact("linear layers are spread by initializer_range", not most, why=why)


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """In the block every new tensor is nan until something is written to it; of whole numbers, the largest."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def spread(parameter: torch.Tensor) -> float:
    """The standard deviation of a weight that has enough numbers for one."""
    return parameter.std().item() if parameter.numel() >= FEW else 0.0


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return 0.7 < spread(one) / max(spread(other), 1e-12) < 1.4
