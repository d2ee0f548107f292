"""The loss is a function of the logits that it comes with: labels are shifted once, and -100 counts nowhere."""

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

from ..findings import Finding, of_fact
from ..subject import Subject
from .causality import with_other_token

STEPS = (
    "ids = torch.arange(5, 17)[None]; out = model(input_ids=ids, labels=ids)",
    "expected = torch.nn.functional.cross_entropy(out.logits[0, {}].float(), ids[0{}])",
    "print(out.loss.item(), expected.item())  # equal if the loss is that of the logits",
)


def unclaimed(subject: Subject) -> str:
    return "" if subject.takes("labels") else "its forward takes no labels"


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.labelled()
    fields = {"steps": steps_of(subject)}
    out = model(**batch)
    if out.loss is None:
        yield of_fact("labels bring a loss", False, **fields)
        return
    yield subject.compared(
        "a third of the labels -100", out.loss, expected(subject, out.logits, batch["labels"]), **fields
    )
    if subject.kind == "image":
        return
    name = "labels" if subject.kind == "seq2seq" else "input_ids"
    every = batch | {"labels": batch[name].clamp(min=5)}
    out = model(**every)
    yield subject.compared("every label", out.loss, expected(subject, out.logits, every["labels"]), **fields)
    other = model(**with_other_token(every, "labels", every["labels"].shape[1] - 1))
    yield subject.compared("logits when the last label changes", other.logits, out.logits)


def expected(subject: Subject, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean of the labels' cross-entropies; the logits at a token of a causal model are for the next one."""
    if subject.kind == "image":
        return cross_entropy(logits, labels)
    if subject.kind == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def steps_of(subject: Subject) -> tuple[str, ...]:
    if subject.kind not in ("causal", "masked"):
        return ()
    where = (":-1", ", 1:") if subject.kind == "causal" else (":", "")
    return (STEPS[0], STEPS[1].format(*where), STEPS[2])
