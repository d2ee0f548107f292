"""Every implementation of attention and of experts that the class claims computes what eager does."""

from collections.abc import Iterator
from functools import partial

import torch

from ...errors import first_line
from ..findings import Finding, not_claimed
from ..subject import Subject

MASKED = (7, 3, 11)


def unclaimed(subject: Subject) -> str:
    return ""


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    batches = {"rows": subject.rows()}
    if subject.reads_text and subject.takes("attention_mask"):
        batches["padded rows"] = subject.padded(subject.documents(MASKED))
    expected = outputs(subject.fresh("eager"), batches)
    for backend in subject.backends[1:]:
        got = outputs(subject.fresh(backend), batches)
        for name, batch in batches.items():
            real = subject.real(batch) if "padded" in name else slice(None)
            yield subject.compared(f"{name}, {backend} and eager", got[name][real], expected[name][real])
    if len(subject.backends) == 1:
        yield not_claimed("sdpa", "its class says _supports_sdpa = False")
    yield from experts(subject, batches["rows"])


def outputs(model, batches: dict) -> dict[str, torch.Tensor]:
    return {name: model(**batch).logits for name, batch in batches.items()}


def experts(subject: Subject, batch: dict) -> Iterator[Finding]:
    """The implementations of experts that run on any device, in fp32: grouped_mm takes no fp64."""
    model = subject.fresh(dtype=torch.float32)
    batch = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
    if not model._can_set_experts_implementation() or not getattr(model.config, "_experts_implementation", None):
        return
    compared = partial(subject.compared, tolerance=subject.fp32_tolerance)
    own = model.config._experts_implementation
    model.set_experts_implementation("eager")
    expected = model(**batch).logits
    for name in dict.fromkeys((own, "batched_mm", "grouped_mm")):
        what = f"experts by {name} and eager"
        try:
            model.set_experts_implementation(name)
        except ValueError as error:  # of a config that it cannot compute
            yield not_claimed(what, first_line(error))
            continue
        yield subject.tried(what, lambda what=what: compared(what, model(**batch).logits, expected))
