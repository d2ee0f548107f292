"""Documents of a packed row do not see each other: logits, loss and gradients are those of separate documents.

transformers' classes recognise documents by position_ids that restart at 0 (its page on padding-free training).
"""

from collections.abc import Iterator

import torch
from anyformer.modeling.families import FAMILIES

from ...interop.matching import ARCHITECTURES
from ..findings import Finding, Verdict, not_claimed
from ..subject import Subject

LENGTHS = (5, 1, 7, 4)
MASK, CACHE = "attention_mask=torch.ones_like(ids)", "use_cache=True"
THIRD = 2  # the index of the document whose gradients are computed
STATELESS = ("attention", "dense", "sparse", "moe", "mlp")  # words in the names of layers that carry no state
UNPACKED_BY_MASK = "transformers reads documents from position_ids only where no attention_mask is given"


def unclaimed(subject: Subject) -> str:
    return subject.lacks("input_ids", *(f"{prefix}position_ids" for prefix in subject.prefixes))


def ask(subject: Subject) -> Iterator[Finding]:
    documents = subject.documents(LENGTHS)
    row, padded = subject.packed(documents), padded_behind(subject, documents)
    ones = {f"{prefix}attention_mask": torch.ones_like(row[f"{prefix}input_ids"]) for prefix in subject.prefixes}
    rows, facts = two_rows(subject), about(subject)
    for backend in subject.backends:
        model = subject.fresh(backend)
        fields = facts | {"steps": subject.steps_on(backend, facts["steps"])}
        with torch.no_grad():
            alone = torch.cat([model(**each).logits for each in documents], dim=1)
            yield subject.compared(f"position_ids, {backend}", model(**row).logits, alone, **fields)
            yield with_more(subject, f"position_ids and a mask of ones, {backend}", model(**row, **ones).logits, alone)
            got = model(**padded).logits[:, : alone.shape[1]]
            yield with_more(subject, f"position_ids and a mask of the padding behind them, {backend}", got, alone)
            if subject.kind == "causal" and subject.takes("use_cache"):
                got = model(**row | {"use_cache": True}).logits
                yield with_more(subject, f"position_ids and use_cache=True, {backend}", got, alone, CACHE)
            both, expected = rows
            apart = torch.cat([torch.cat([model(**each).logits for each in one], dim=1) for one in expected])
            yield subject.compared(f"two rows of other documents, {backend}", model(**both).logits, apart, **fields)
        yield from gradients_across(subject, model, documents, row, backend, fields)
    if subject.takes("labels"):
        yield loss(subject, facts)


def padded_behind(subject: Subject, documents: list[dict]) -> dict:
    """A packed row with three tokens of padding after the last document."""
    row = subject.packed([*documents, *subject.documents((3,))])
    for prefix in subject.prefixes:
        ids = row[f"{prefix}input_ids"]
        real = sum(document[f"{prefix}input_ids"].shape[1] for document in documents)
        row[f"{prefix}attention_mask"] = (torch.arange(ids.shape[1], device=ids.device) < real).long()[None]
    return row


def two_rows(subject: Subject):
    """(a batch of two packed rows, their documents)."""
    rows = [subject.documents((3, 6, 3)), subject.documents((8, 2, 2))]
    packed = [subject.packed(documents) for documents in rows]
    if subject.kind == "seq2seq":  # the decoder's rows are shorter, and differ in length
        return packed[0], rows[:1]
    return {name: torch.cat([row[name] for row in packed]) for name in packed[0]}, rows


@torch.no_grad()
def loss(subject: Subject, fields: dict) -> Finding:
    """The loss of a packed row is the mean over the labels of all its documents."""
    model, documents = subject.fresh(), []
    for seed, length in enumerate(length for length in LENGTHS if length > 1):
        documents.append(subject.labelled(1, length, seed))
        documents[-1]["labels"][0, 0] = -100  # no document predicts the first token of another
        documents[-1]["labels"][0, -1] = 5
    counts = [len(subject.predicted(each["labels"])) for each in documents]
    written = {"decoder_input_ids": "labels"} if subject.kind == "seq2seq" else {}  # only their length counts
    row = subject.packed([each | {name: each[of] for name, of in written.items()} for each in documents])
    row = {name: x for name, x in row.items() if name not in written}
    parts = [model(**each).loss * count for each, count in zip(documents, counts, strict=True)]
    expected = sum(parts) / sum(counts)
    return subject.compared("loss", model(**row).loss, expected, tolerance=subject.fp32_tolerance, **fields)


def gradients_across(
    subject: Subject, model, documents: list[dict], row: dict, backend: str, fields: dict
) -> Iterator[Finding]:
    """The third document's outputs have no gradient with respect to the tokens of the others."""
    names = [f"{prefix}inputs_embeds" for prefix in subject.prefixes]
    if not subject.takes(*names):
        return
    inputs, table = dict(row), model.get_input_embeddings()
    for name in names:
        ids = inputs.pop(name.replace("inputs_embeds", "input_ids"))
        inputs[name] = table(ids).detach().requires_grad_()
    written = place(documents, f"{subject.prefixes[-1]}input_ids")
    out = model(**inputs).logits[:, written].square().sum()
    for name, gradient in zip(names, torch.autograd.grad(out, [inputs[name] for name in names]), strict=True):
        third = place(documents, name.replace("inputs_embeds", "input_ids"))
        scale, others = gradient[:, third].abs().max().item(), gradient.clone()
        others[:, third] = 0
        what = f"gradient for {name} of other documents, {backend}"
        yield subject.compared(what, others, torch.zeros_like(others), scale=scale, tolerance=0.0, **fields)


def place(documents: list[dict], name: str) -> slice:
    """The tokens of the third document in the packed row."""
    begin = sum(each[name].shape[1] for each in documents[:THIRD])
    return slice(begin, begin + documents[THIRD][name].shape[1])


def with_more(subject: Subject, what: str, got: torch.Tensor, expected: torch.Tensor, given: str = MASK) -> Finding:
    """Compare outputs for a packed row that comes with more than position_ids.

    Native classes read documents from position_ids alone. given: the further arguments, as Python code.
    """
    instead = "no attention_mask" if given == MASK else "use_cache=False"
    finding = subject.compared(what, got, expected, way_out=f"send {instead} with packed rows")
    if finding.verdict is Verdict.HOLDS or subject.config.model_type in FAMILIES:
        return finding
    fields = {"steps": steps_of(subject, given), "way_out": finding.way_out}
    return not_claimed(what, UNPACKED_BY_MASK, difference=finding.difference, tolerance=finding.tolerance, **fields)


def about(subject: Subject) -> dict:
    """The fields of a failing Finding: why documents may leak, how to reproduce it, and what helps."""
    return {"why": state_layers(subject.config), "steps": steps_of(subject), "way_out": way_out(subject)}


def state_layers(config) -> str:
    """Which kinds of layers carry a state from token to token, judged by their names in the config."""
    text = config.get_text_config()
    names = dict.fromkeys(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    kinds = [name for name in names if "linear" in name or not any(word in name for word in STATELESS)]
    return f"layers of {' and '.join(kinds)} carry a state from one document to the next" if kinds else ""


def way_out(subject: Subject) -> str:
    if row := ARCHITECTURES.get(subject.config.model_type):
        held = f"our {row.family} family holds the same architecture and keeps them apart"
        return f"anyformer convert MODEL FOLDER: {held}"
    return "train unpacked (task.packing=false, or rows of one document): no family of ours holds this architecture"


def steps_of(subject: Subject, given: str = "") -> tuple[str, ...]:
    """The steps of a reproducer: two documents, of five and seven tokens."""
    alone = ", use_cache=False" if subject.takes("use_cache") else ""
    together = f", {given}" if given == CACHE else f"{alone}, {given}" if given else alone
    return (
        "ids, positions = torch.arange(5, 17)[None], torch.tensor([[*range(5), *range(7)]])",
        f"together = model(input_ids=ids, position_ids=positions{together}).logits[:, 5:]",
        f"print((together - model(input_ids=ids[:, 5:]{alone}).logits).abs().max().item())  # 0 if they are apart",
    )
