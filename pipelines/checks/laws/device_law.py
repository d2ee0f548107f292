"""An accelerator computes what the CPU computes: outputs, and the gradients of a step."""

import copy
from collections.abc import Iterator

import torch

from ..findings import Finding
from ..subject import Subject, gradients_of

ROUNDING = 1e-3  # another device sums in another order


def unclaimed(subject: Subject) -> str:
    return "" if subject.device.type != "cpu" else "asked with --device cuda"


def ask(subject: Subject) -> Iterator[Finding]:
    model = subject.fresh()
    on_host = copy.deepcopy(model).cpu()
    for what, batch in subject.full_and_padded().items():
        with torch.no_grad():
            got, expected = model(**batch).logits, on_host(**on_cpu(batch)).logits
        yield subject.compared(f"outputs of {what}", got.cpu(), expected, tolerance=ROUNDING)
    if subject.takes("labels"):
        batch = subject.labelled()
        got = {name: x.cpu() for name, x in gradients_of(model, model(**batch).loss).items()}
        expected = gradients_of(on_host, on_host(**on_cpu(batch)).loss)
        yield subject.compared_gradients("gradients", got, expected, tolerance=ROUNDING)


def on_cpu(batch: dict) -> dict:
    return {name: x.cpu() for name, x in batch.items()}
