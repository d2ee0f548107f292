"""A row has the same outputs alone and at any place in a batch."""

from collections.abc import Iterator

import torch

from ..findings import Finding
from ..subject import Subject

STEPS = (
    "ids = torch.arange(5, 29).view(2, 12)",
    "together, alone = model(input_ids=ids).logits[1:], model(input_ids=ids[1:]).logits",
    "print((together - alone).abs().max().item())  # 0 if rows do not see each other",
)


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    batch = subject.rows(3)
    written = STEPS if subject.kind in ("causal", "masked") else ()
    for backend in subject.backends:
        steps = subject.steps_on(backend, written)
        model = subject.fresh(backend)
        logits = model(**batch).logits
        alone = torch.cat([model(**{name: x[n : n + 1] for name, x in batch.items()}).logits for n in range(3)])
        yield subject.compared(f"three rows and each alone, {backend}", logits, alone, steps=steps)
        turned = model(**{name: x.flip(0) for name, x in batch.items()}).logits.flip(0)
        yield subject.compared(f"three rows in another order, {backend}", turned, logits, steps=steps)
