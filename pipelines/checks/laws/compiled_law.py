"""A compiled step, whole in one graph, and an exported model compute what the eager ones do."""

from collections.abc import Iterator

import torch

from ..findings import Finding, not_claimed
from ..subject import Subject, gradients_of
from .accumulation_law import accepts_count, in_training

MUST_RUN, BACKEND = True, "aot_eager"
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
    if missing := subject.lacks("labels"):
        yield not_claimed("a compiled step", missing)
        return
    torch.compiler.reset()
    try:
        model = in_training(subject, subject.labelled())
        run = torch.compile(model, fullgraph=True, backend=BACKEND)
        for what, batch in batches(subject):
            expected, got = (gradients_of(model, forward(**batch).loss) for forward in (model, run))
            yield subject.compared_gradients(f"gradients of a compiled step of {what}", got, expected)
    finally:
        torch.compiler.reset()


def batches(subject: Subject) -> Iterator[tuple[str, dict]]:
    """Labelled rows, and the same rows as two packed documents of five and seven tokens."""
    batch = subject.labelled()
    if subject.kind != "image" and accepts_count(subject):
        batch["num_items_in_batch"] = torch.tensor(20)
    yield "rows", batch
    if subject.reads_text and subject.kind != "seq2seq" and subject.takes("position_ids"):
        positions = torch.cat((torch.arange(5), torch.arange(7))).expand(2, -1)
        yield "packed rows", batch | {"position_ids": positions.to(batch["labels"].device)}


@torch.no_grad()
def exported(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.rows()
    program = torch.export.export(model, (), kwargs=batch, strict=False)
    got = program.module()(**batch)
    logits = got.logits if hasattr(got, "logits") else got[0]
    yield subject.compared("an exported model", logits, model(**batch).logits)
