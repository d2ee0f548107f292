"""Gradient checkpointing, reentrant or not, changes no gradient and keeps fewer tensors."""

from collections.abc import Iterator

import torch

from ..findings import Finding, of_fact
from ..subject import Subject, gradients_of

NEEDS = ("labels",)
STEPS = (
    "ids = torch.arange(5, 17)[None]; torch.manual_seed(2); model.train()(input_ids=ids, labels=ids).loss.backward()",
    "model.gradient_checkpointing_enable({{'use_reentrant': {}}}); model.enable_input_require_grads(); "
    "torch.manual_seed(2)",
    "(-model(input_ids=ids, labels=ids).loss).backward(); "
    "print(torch.nn.utils.clip_grad_norm_(model.parameters(), 1).item())  # 0: equal gradients, subtracted",
)


def unclaimed(subject: Subject) -> str:
    claimed = subject.fresh().supports_gradient_checkpointing
    return "" if claimed else "its class says supports_gradient_checkpointing = False"


def ask(subject: Subject) -> Iterator[Finding]:
    batch = subject.labelled()

    def gradients(model):
        torch.manual_seed(2)  # for equal dropout masks
        return gradients_of(model, model(**batch).loss)

    plain = subject.fresh(training=True)
    expected, all_bytes = gradients(plain), kept_bytes(plain, batch)
    for reentrant in (False, True):
        model = subject.fresh(training=True)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        what = f"use_reentrant={reentrant}"
        way_out = "gradient_checkpointing_kwargs={'use_reentrant': False}" if reentrant else ""
        steps = tuple(line.format(reentrant) for line in STEPS) if subject.kind in ("causal", "masked") else ()
        yield subject.compared_gradients(f"gradients, {what}", gradients(model), expected, steps=steps, way_out=way_out)
        size = kept_bytes(model, batch)
        yield of_fact(
            f"fewer bytes kept for the backward pass, {what}", size < all_bytes, why=f"{size:,} of {all_bytes:,}"
        )


def kept_bytes(model, batch: dict) -> int:
    """Bytes of the tensors that a forward pass keeps for its backward pass, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(**batch).loss
    del loss
    return sum(sizes.values())
