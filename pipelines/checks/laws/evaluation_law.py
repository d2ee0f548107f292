"""`Trainer.evaluate` and `predict` return the loss, the logits and the labels of a model."""

import tempfile
from collections.abc import Iterator

import torch
from transformers import Trainer, TrainingArguments

from ...errors import first_line
from ..findings import Finding, Verdict, of_fact
from ..subject import Subject

NEEDS = ("labels",)


def ask(subject: Subject) -> Iterator[Finding]:
    model, batch = subject.fresh(), subject.labelled(4)
    with torch.no_grad():
        out = model(**batch)
    with tempfile.TemporaryDirectory() as folder:
        trainer = plain_trainer(model, folder, per_device_eval_batch_size=4)
        try:
            loss = trainer.evaluate(rows_of(batch)).get("eval_loss")
            predicted = trainer.predict(rows_of(batch))
        except Exception as error:  # Trainer cannot use what the model returns
            why = f"{type(error).__name__}: {first_line(error)}"
            yield Finding("evaluate and predict run", Verdict.FAILS, why=why)
            return
    yield of_fact("evaluate returns eval_loss", loss is not None)
    if loss is not None:
        fields = {"why": counts_first_label(subject, trainer), "tolerance": subject.fp32_tolerance}
        yield subject.compared("eval_loss", torch.tensor(loss), out.loss.cpu(), **fields)
    logits = predicted.predictions
    if isinstance(logits, tuple):
        logits = logits[0] if logits else None
    yield of_fact("predict returns logits", logits is not None)
    if logits is not None:
        yield subject.compared("the logits of predict", torch.as_tensor(logits), out.logits.cpu())
    labels = predicted.label_ids
    yield of_fact("predict returns labels", labels is not None and (labels == batch["labels"].cpu().numpy()).all())


def counts_first_label(subject: Subject, trainer) -> str:
    """Why Trainer divides a causal loss by more labels than count in it; empty if it does not."""
    if (
        subject.kind != "causal"
        or not trainer.model_accepts_loss_kwargs
        or getattr(trainer, "_loss_shifts_labels", True)
    ):
        return ""
    loss_type = getattr(trainer.model, "loss_type", None)
    return f"its loss_type is {loss_type!r}, not ForCausalLM: Trainer counts the first label of each row, too"


def rows_of(batch: dict) -> list[dict]:
    """A batch as a data set: a dict of CPU tensors for each row."""
    return [{name: x[row].cpu() for name, x in batch.items()} for row in range(len(batch["labels"]))]


def plain_trainer(model, folder: str, rows: list[dict] | None = None, **arguments):
    """transformers' own Trainer, silent, on the device of the model."""
    fixed = {"report_to": [], "disable_tqdm": True, "use_cpu": model.device.type == "cpu", "logging_steps": 10**6}
    fixed |= {"save_strategy": "no", "seed": 5, "dataloader_pin_memory": False}
    return Trainer(model=model, args=TrainingArguments(output_dir=folder, **(fixed | arguments)), train_dataset=rows)
