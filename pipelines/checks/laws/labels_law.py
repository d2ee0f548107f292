"""The loss is a function of the logits that it comes with: labels are shifted once, and -100 counts nowhere."""

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

from ..findings import Finding, of_fact
from ..subject import Subject
from .causality_law import with_other_token

NEEDS = ("labels",)
STEPS = (
    "ids = torch.arange(5, 17)[None]; labels = ids.masked_fill(ids % 3 == 0, -100)",
    "out, cross_entropy = model(input_ids=ids, labels=labels), torch.nn.functional.cross_entropy",
    "print((out.loss - cross_entropy(out.logits[0, {}], labels[0{}])).abs().item())  # 0 if it is their loss",
)


def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.labelled()
    yield from loss_and_gradient(subject, model, batch, "a third of the labels -100")
    if subject.kind != "image":
        name = "labels" if subject.kind == "seq2seq" else "input_ids"
        every = batch | {"labels": batch[name].clamp(min=5)}
        yield from loss_and_gradient(subject, model, every, "every label")
        yield own_label(subject, model, every)


def loss_and_gradient(subject: Subject, model, batch: dict, what: str) -> Iterator[Finding]:
    """The returned loss is that of the returned logits, and so is its gradient with respect to them."""
    out, fields = model(**batch), {"steps": steps_of(subject), "tolerance": subject.fp32_tolerance}
    if out.loss is None:
        yield of_fact(what, False, why="it returns no loss")
        return
    loss = expected(subject, out.logits, batch["labels"])
    yield subject.compared(what, out.loss, loss, **fields)
    (got,) = torch.autograd.grad(out.loss, out.logits, retain_graph=True, allow_unused=True)
    (expected_gradient,) = torch.autograd.grad(loss, out.logits)
    if got is not None:  # None if the class returns a copy of the logits that the loss used
        yield subject.compared(f"{what}: gradient for the logits", got, expected_gradient, **fields)


@torch.no_grad()
def own_label(subject: Subject, model, batch: dict) -> Finding:
    """The logits of a token do not depend on its label: a decoder reads only the labels before it."""
    position = batch["labels"].shape[1] // 2
    other = with_other_token(batch, "labels", position)
    got, original = (model(**inputs).logits[:, : position + 1] for inputs in (other, batch))
    return subject.compared(f"logits up to token {position} when its label changes", got, original)


def expected(subject: Subject, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the labels; in a causal model, the logits at a token predict the next one."""
    if subject.kind == "image":
        return cross_entropy(logits, labels)
    if subject.kind == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def steps_of(subject: Subject) -> tuple[str, ...]:
    if subject.kind not in ("causal", "masked"):
        return ()
    where = (":-1", ", 1:") if subject.kind == "causal" else (":", "")
    return (*STEPS[:2], STEPS[2].format(*where))
