"""Documents of a packed row do not see each other: logits, loss and gradients are those of separate documents.

Position ids that begin anew are how transformers' classes are told of documents (its page on padding-free training).
"""

from collections.abc import Iterator

import torch
from anyformer.modeling.families import FAMILIES

from ..findings import Finding, Verdict
from ..source_lines import mask_without_positions, state_layers, unpacked_by_mask
from ..subject import Subject
from ..ways_out import converted_family

LENGTHS = (5, 1, 7, 4)
THIRD = slice(6, 13)  # the tokens of the third document in the packed row


def unclaimed(subject: Subject) -> str:
    missing = [f"{prefix}position_ids" for prefix in subject.prefixes if not subject.takes(f"{prefix}position_ids")]
    if not subject.reads_text:
        return "it reads no tokens"
    return f"its forward takes no {missing[0]}" if missing else ""


def ask(subject: Subject) -> Iterator[Finding]:
    documents = subject.documents(LENGTHS)
    row = subject.packed(documents)
    ones = {f"{prefix}attention_mask": torch.ones_like(row[f"{prefix}input_ids"]) for prefix in subject.prefixes}
    rows = two_rows(subject)
    for backend in subject.backends:
        model = subject.fresh(backend)
        with torch.no_grad():
            alone = torch.cat([model(**each).logits for each in documents], dim=1)
            fields = about(subject)
            yield subject.compared(f"position_ids, {backend}", model(**row).logits, alone, **fields)
            yield with_mask(subject, f"position_ids and a mask of ones, {backend}", model(**row, **ones).logits, alone)
            both, expected = rows
            apart = torch.cat([torch.cat([model(**each).logits for each in one], dim=1) for one in expected])
            yield subject.compared(f"two rows of other documents, {backend}", model(**both).logits, apart, **fields)
    yield from gradient_across(subject, row)


def two_rows(subject: Subject):
    """(a batch of two packed rows, their documents)."""
    rows = [subject.documents((3, 6, 3)), subject.documents((8, 2, 2))]
    packed = [subject.packed(documents) for documents in rows]
    if subject.kind == "seq2seq":  # what it writes is shorter, and not as long in both rows
        return packed[0], rows[:1]
    return {name: torch.cat([row[name] for row in packed]) for name in packed[0]}, rows


def gradient_across(subject: Subject, row: dict) -> Iterator[Finding]:
    """The third document's outputs have no gradient for the tokens of the others."""
    if subject.kind == "seq2seq" or not subject.takes("inputs_embeds"):
        return
    model = subject.fresh()
    table = model.get_input_embeddings()
    embeds = table(row["input_ids"]).detach().requires_grad_()
    inputs = {name: x for name, x in row.items() if name != "input_ids"}
    logits = model(**inputs, inputs_embeds=embeds).logits
    (gradient,) = torch.autograd.grad(logits[:, THIRD].square().sum(), embeds)
    own = gradient[:, THIRD].abs().max().item()
    others = gradient.clone()
    others[:, THIRD] = 0
    what = "gradient for tokens of other documents"
    yield subject.compared(what, others, torch.zeros_like(others), scale=own, **about(subject))


def with_mask(subject: Subject, what: str, got: torch.Tensor, expected: torch.Tensor) -> Finding:
    """Native classes do not promise it: transformers reads documents from positions where no mask is given."""
    found = subject.compared(what, got, expected, way_out="send no attention_mask with packed rows")
    if found.verdict is Verdict.HOLDS or subject.config.model_type in FAMILIES:
        return found
    steps = steps_of(subject, mask=True)
    return Finding(
        what, Verdict.NOT_CLAIMED, found.difference, found.tolerance, unpacked_by_mask(), steps, found.way_out
    )


def about(subject: Subject) -> dict:
    """Why documents may leak, how to see it, and what helps."""
    why = state_layers(subject.config) or mask_without_positions(subject.fresh())
    return {"why": why, "steps": steps_of(subject), "way_out": way_out(subject)}


def way_out(subject: Subject) -> str:
    family = converted_family(subject.config)
    if family:
        return f"anyformer convert MODEL FOLDER: our {family} family holds the same architecture and keeps them apart"
    return "train unpacked (task.packing=false, or rows of one document): no family of ours holds this architecture"


def steps_of(subject: Subject, mask: bool = False) -> tuple[str, ...]:
    """Two documents, of five and seven tokens."""
    ones = ", attention_mask=torch.ones_like(ids)" if mask else ""
    more = ", use_cache=False" if subject.takes("use_cache") else ""
    return (
        "ids, positions = torch.arange(5, 17)[None], torch.tensor([[*range(5), *range(7)]])",
        f"together = model(input_ids=ids, position_ids=positions{ones}{more}).logits[:, 5:]",
        f"print((together - model(input_ids=ids[:, 5:]{more}).logits).abs().max().item())  # 0 if they are apart",
    )
