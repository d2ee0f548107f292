"""Evaluation draws no random number; training draws dropout, equal for equal seeds."""

from collections.abc import Iterator

import torch

from ..findings import Finding, not_claimed, of_fact
from ..subject import Subject

STEPS = (
    "ids = torch.arange(5, 17)[None]",
    "print((model(input_ids=ids).logits - model(input_ids=ids).logits).abs().max().item())  # 0 in evaluation",
)


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.rows()
    steps = STEPS if subject.kind in ("causal", "masked") else ()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    once = model(**batch).logits
    yield of_fact("evaluation draws no random number", torch.equal(torch.get_rng_state(), state), steps=steps)
    yield of_fact("two evaluations are equal bit by bit", torch.equal(model(**batch).logits, once), steps=steps)
    rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    if not any(rates):
        yield not_claimed("dropout in training", "none of its dropouts is above 0")
        return
    model.train()
    logits = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        logits.append(model(**batch).logits)
    yield of_fact("training with the same seed is the same", torch.equal(*logits[:2]))
    yield of_fact("dropout is drawn in training", not torch.equal(*logits[1:]))
