"""A run of plain Trainer that resumes from a checkpoint ends with the weights of an uninterrupted run, bit by bit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from ..findings import Finding, of_fact
from ..subject import Subject
from .evaluation_law import plain_trainer, rows_of
from .saving_law import differing

NEEDS = ("labels",)
STEPS_OF_ALL, STEPS_BEFORE = 4, 2


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
        checkpoint = Path(whole) / f"checkpoint-{STEPS_BEFORE}"
        got, renamed = run(resumed, checkpoint), renamed_keys(checkpoint, expected)
    other = differing(expected, got)
    why = renamed or f"not equal: {', '.join(other[:3])}"
    yield of_fact("weights after two steps, a kill and two more", not other, why=why)


def renamed_keys(checkpoint: Path, weights: dict) -> str:
    """Says which keys of a checkpoint Trainer does not load when it resumes; empty if it loads all."""
    file = checkpoint / "model.safetensors"
    if not file.is_file():
        return ""
    with safe_open(file, framework="pt") as saved:
        unknown = [name for name in saved.keys() if name not in weights]  # noqa: SIM118 - it has no other way
    if not unknown:
        return ""
    return (
        f"save_pretrained renames weights ({', '.join(unknown[:2])}), and Trainer resumes by load_state_dict, which "
        f"does not know such names: {len(unknown)} tensors of the checkpoint are not loaded"
    )
