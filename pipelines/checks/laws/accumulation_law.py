"""Micro-batches, accumulated as Trainer does, have the loss and gradients of the whole batch."""

import inspect
from collections.abc import Iterator

import torch

from ..findings import Finding, not_claimed
from ..subject import Subject, gradients_of

NEEDS = ("labels",)
STEPS = (
    "ids = torch.arange(5, 53).view(4, 12)  # Trainer hands the number of labels to every micro-batch of a step",
    "parts = [model(input_ids=x, labels=x, num_items_in_batch={}).loss for x in ids.split(1)]",
    "print((sum(parts) - model(input_ids=ids, labels=ids).loss).abs().item())  # 0 if the number is used",
)
MEANS = "it takes no num_items_in_batch, so Trainer adds means of micro-batches, whatever labels each has"
IGNORES = (
    "its forward takes **kwargs, so Trainer hands it num_items_in_batch and adds the losses of micro-batches as they "
    "are, but its loss is not divided by that number: gradients are as many times too large as there are micro-batches"
)
WAY_OUT = "train it with anyformer, which divides by the labels of all micro-batches"


def ask(subject: Subject) -> Iterator[Finding]:
    batch = subject.labelled(4)
    yield parts_and_whole(subject, "two halves of as many labels", even(subject, batch), (2, 2))
    if subject.kind == "image":
        return
    uneven = batch | {"labels": batch["labels"].clone()}
    uneven["labels"][0, 4:] = -100
    what = "a row of few labels and three of many"
    if accepts_count(subject):
        yield parts_and_whole(subject, what, uneven, (1, 3))
        yield counted(subject, uneven)
    else:
        yield not_claimed(what, MEANS, way_out=WAY_OUT)
    if subject.takes("output_router_logits") and getattr(subject.text_config, "router_aux_loss_coef", 0):
        yield balance(subject, uneven)


def accepts_count(subject: Subject) -> bool:
    """Whether Trainer passes the number of labels to the model, by Trainer's rule."""
    model = subject.fresh()
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    parameters = inspect.signature(type(model).forward).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def even(subject: Subject, batch: dict) -> dict:
    """A batch whose rows have equally many labels."""
    if subject.kind == "image":
        return batch
    return batch | {"labels": batch["labels"].clamp(min=5)}


def parts_and_whole(subject: Subject, what: str, batch: dict, sizes: tuple[int, ...], **outputs) -> Finding:
    """Compare the gradients of micro-batches, summed as Trainer does, with those of the whole batch."""
    model = in_training(subject, batch)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    count = accepts_count(subject) and subject.kind != "image"
    items = items_of(subject, batch) if count else {}
    whole = gradients_of(model, model(**batch, **items, **outputs).loss)
    parts = [dict(zip(batch, part)) for part in zip(*(x.split(list(sizes)) for x in batch.values()))]
    losses = [model(**part, **items, **outputs).loss for part in parts]
    summed = gradients_of(model, sum(losses) if count else sum(losses) / len(losses))
    steps = steps_of(subject) if count and not outputs else ()
    why = IGNORES if count and ignores_count(model, batch) else ""
    return subject.compared_gradients(what, summed, whole, steps=steps, way_out=WAY_OUT, why=why)


def steps_of(subject: Subject) -> tuple[str, ...]:
    """The steps of a reproducer: four rows of twelve tokens, one by one and together."""
    return tuple(line.format(44 if subject.kind == "causal" else 48) for line in STEPS)


@torch.no_grad()
def ignores_count(model, batch: dict) -> bool:
    """Whether the loss is the same for different values of num_items_in_batch."""
    return torch.equal(*(model(**batch, num_items_in_batch=torch.tensor(count)).loss for count in (2, 50)))


def in_training(subject: Subject, batch: dict):
    """The model in training mode, where router losses are added; in eval mode if it has dropout."""
    model = subject.fresh(training=True)
    with torch.no_grad():
        once, again = model(**batch).loss, model(**batch).loss
    return model if torch.equal(once, again) else subject.fresh()


@torch.no_grad()
def counted(subject: Subject, batch: dict) -> Finding:
    """Compare the loss given num_items_in_batch, the batch's number of labels, with the mean loss without it."""
    model = subject.fresh()
    with_count, mean = model(**batch, **items_of(subject, batch)).loss, model(**batch).loss
    return subject.compared("the number of labels and their mean", with_count, mean)


def items_of(subject: Subject, batch: dict) -> dict:
    """The argument that Trainer passes to a model which divides by the labels of all micro-batches."""
    return {"num_items_in_batch": torch.tensor(len(subject.predicted(batch["labels"])))}


def balance(subject: Subject, batch: dict) -> Finding:
    """Compare gradients with the router balance loss, which native classes compute per micro-batch."""
    what = "the same with the routers' balance loss"
    finding = parts_and_whole(subject, what, batch, (1, 3), output_router_logits=True)
    if finding.difference <= finding.tolerance:
        return finding
    why = "its balance loss is of the loads of each micro-batch, and added to a sum of parts"
    return Finding(what, finding.verdict, finding.difference, finding.tolerance, why=why, way_out=WAY_OUT)
