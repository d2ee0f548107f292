"""A run of plain Trainer that was killed after a checkpoint ends as one that was not, bit by bit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from ..findings import Finding, of_fact
from ..subject import Subject
from ..training_rows import plain_trainer, rows_of

STEPS_OF_ALL, STEPS_BEFORE = 4, 2


def unclaimed(subject: Subject) -> str:
    return "" if subject.takes("labels") else "its forward takes no labels"


def ask(subject: Subject) -> Iterator[Finding]:
    rows = rows_of(subject.labelled(8))

    def run(folder: str, checkpoint: Path | None = None):
        model = subject.fresh()
        how = {"max_steps": STEPS_OF_ALL, "save_strategy": "steps", "save_steps": STEPS_BEFORE, "learning_rate": 1e-2}
        trainer = plain_trainer(model, folder, rows, per_device_train_batch_size=2, **how)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return model.state_dict()

    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as resumed:
        expected = run(whole)
        got = run(resumed, Path(whole) / f"checkpoint-{STEPS_BEFORE}")
    other = [name for name in expected if not torch.equal(expected[name], got[name])]
    yield of_fact("weights after two steps, a kill and two more", not other, why=f"not equal: {', '.join(other[:3])}")
