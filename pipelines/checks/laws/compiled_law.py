"""A compiled step, whole in one graph, and an exported model compute what the eager ones do."""

from collections.abc import Iterator

import torch

from ..findings import Finding, not_claimed
from ..subject import Subject, gradients_of

MUST_RUN = True
STEPS = (
    "import transformers.masking_utils; ids = torch.arange(5, 17)[None]",
    "run = torch.compile(model, fullgraph=True, backend='aot_eager')",
    "print((run(input_ids=ids).logits - model(input_ids=ids).logits).abs().max().item())  # 0 if they agree",
)


def unclaimed(subject: Subject) -> str:
    claimed = getattr(subject.fresh(), "_can_compile_fullgraph", False)
    return "" if claimed else "its class says _can_compile_fullgraph = False"


def ask(subject: Subject) -> Iterator[Finding]:
    yield from exported(subject)
    if not subject.takes("labels"):
        yield not_claimed("a compiled step", "its forward takes no labels")
        return
    torch.compiler.reset()
    try:
        model, batch = subject.fresh(), subject.labelled()
        expected = gradients_of(model, model(**batch).loss)
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
        yield subject.compared_gradients(
            "gradients of a compiled step", gradients_of(model, run(**batch).loss), expected
        )
    finally:
        torch.compiler.reset()


@torch.no_grad()
def exported(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.rows()
    program = torch.export.export(model, (), kwargs=batch, strict=False)
    got = program.module()(**batch)
    logits = got.logits if hasattr(got, "logits") else got[0]
    yield subject.compared("an exported model", logits, model(**batch).logits)
