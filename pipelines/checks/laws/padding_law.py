"""Padding changes no output: on the right, on the left, and a row of nothing but padding is no nan."""

from collections.abc import Iterator

import torch

from ..findings import Finding, Verdict, not_claimed, of_fact
from ..subject import Subject, gradients_of

NEEDS = ("input_ids", "attention_mask")
LENGTHS = (7, 1, 11, 5)
EMPTY = 1  # the index of the row that is only padding
COUNTS = "its forward takes no position_ids: it counts positions from the row's first token, padding or not"


def ask(subject: Subject) -> Iterator[Finding]:
    documents = subject.documents(LENGTHS)
    right, left = subject.padded(documents), subject.padded(documents, "left")
    empty = right | {"attention_mask": right["attention_mask"].clone()}
    empty["attention_mask"][EMPTY] = 0
    counted = {"position_ids": (left["attention_mask"].cumsum(-1) - 1).clamp(min=0)}  # as generate sends them
    positioned = left | counted if subject.takes("position_ids") else left
    for backend in subject.backends:
        model = subject.fresh(backend)
        with torch.no_grad():
            alone = [model(**each).logits[0] for each in documents]
        yield padded(subject, model, right, alone, "right", backend)
        # RoBERTa and similar models count positions from the padding id: they are right without position_ids.
        findings = [padded(subject, model, batch, alone, "left", backend) for batch in (positioned, left)]
        best = min(findings, key=lambda one: one.difference)
        if best.verdict is Verdict.FAILS and not subject.takes("position_ids"):
            best = not_claimed(best.what, COUNTS, difference=best.difference)
        yield best
        yield from with_an_empty_row(subject, model, empty, alone, backend)


@torch.no_grad()
def padded(subject: Subject, model, batch: dict, alone: list, side: str, backend: str) -> Finding:
    """Compare the rows of a padded batch with each row alone."""
    got = model(**batch).logits[subject.real(batch)]
    steps = subject.steps_on(backend, steps_of(subject, side))
    return subject.compared(f"a batch padded on the {side}, {backend}", got, torch.cat(alone), steps=steps)


def with_an_empty_row(subject: Subject, model, batch: dict, alone: list, backend: str) -> Iterator[Finding]:
    """A row of only padding gives no nan, in outputs or gradients, and changes no other row."""
    logits = model(**batch).logits
    others = [row for row in range(len(alone)) if row != EMPTY]
    got = torch.cat([logits[row, : len(alone[row])] for row in others])
    gradients = gradients_of(model, got.square().sum())
    what = "a row of nothing but padding is no nan"
    yield of_fact(f"{what}, {backend}", bool(logits.isfinite().all()))
    wrong = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    yield of_fact(f"{what} in any gradient, {backend}", not wrong, why=", ".join(wrong[:3]))
    expected = torch.cat([alone[row] for row in others])
    yield subject.compared(f"the rows beside a row of padding, {backend}", got, expected)


def steps_of(subject: Subject, side: str) -> tuple[str, ...]:
    """The steps of a reproducer: a row of five tokens beside one of seven."""
    pads, mask, tokens, positions = "[*range(5, 10), 0, 0]", "[1, 1, 1, 1, 1, 0, 0]", ":5", ""
    if side == "left":
        pads, mask, tokens = "[0, 0, *range(5, 10)]", "[0, 0, 1, 1, 1, 1, 1]", "2:"
        positions = ", position_ids=(mask.cumsum(-1) - 1).clamp(min=0)" if subject.takes("position_ids") else ""
    return (
        f"ids, mask = torch.tensor([{pads}, [*range(5, 12)]]), torch.tensor([{mask}, [1] * 7])",
        f"padded = model(input_ids=ids, attention_mask=mask{positions}).logits[:1, {tokens}]",
        "print((padded - model(input_ids=torch.arange(5, 10)[None]).logits).abs().max().item())  # 0 if it is equal",
    )
