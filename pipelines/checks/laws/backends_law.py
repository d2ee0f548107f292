"""Every implementation of attention and of experts that the class claims computes what eager does."""

from collections.abc import Iterator

import torch

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
    """The implementations of experts that run on any device."""
    model = subject.fresh()
    if not model._can_set_experts_implementation() or not getattr(model.config, "_experts_implementation", None):
        return
    model.set_experts_implementation("eager")
    expected = model(**batch).logits
    for name in ("batched_mm", "grouped_mm"):
        model.set_experts_implementation(name)
        what = f"experts by {name} and eager"
        yield subject.tried(what, lambda what=what: subject.compared(what, model(**batch).logits, expected))
