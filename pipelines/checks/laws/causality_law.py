"""No output of a causal model depends on a later token; one of a bidirectional model does."""

from collections.abc import Iterator

import torch

from ..findings import Finding, of_fact
from ..subject import Subject

NEEDS = ("input_ids",)
TOKENS = 12
STEPS = (
    "ids, other = torch.arange(5, 17)[None], torch.tensor([[*range(5, 16), 20]])  # the last token differs",
    "before, after = (model(input_ids=x).logits[:, :-1] for x in (ids, other))",
    "print((before - after).abs().max().item())  # 0 if no token sees a later one",
)


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    batch = subject.rows(2, TOKENS)
    for backend in subject.backends:
        model = subject.fresh(backend)
        logits = model(**batch).logits
        steps = subject.steps_on(backend, STEPS if subject.kind == "causal" else ())
        if subject.kind != "masked":
            name = f"{subject.prefixes[-1]}input_ids"
            for position in (batch[name].shape[1] - 1, batch[name].shape[1] // 2):
                changed = model(**with_other_token(batch, name, position)).logits
                what = f"outputs before token {position} when it changes, {backend}"
                yield subject.compared(what, changed[:, :position], logits[:, :position], steps=steps)
        if subject.kind != "causal":
            changed = model(**with_other_token(batch, "input_ids", TOKENS - 1)).logits
            moved = (changed[:, 0] - logits[:, 0]).abs().max().item() > 1e-9
            yield of_fact(f"the first output depends on the last token, {backend}", moved)


def with_other_token(batch: dict, name: str, position: int) -> dict:
    """The batch with the token at a position replaced by the nearest other token before it in its row."""
    ids = batch[name].clone()
    for row in ids:
        before = row[:position]
        row[position] = before[before != row[position]][-1]
    return batch | {name: ids}
