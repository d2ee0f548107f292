"""The audit of samples: which rows and documents every step of a run has trained, in files that a script can count."""

import json
from pathlib import Path

from transformers import TrainerCallback

from ...storage.atomic import write_atomically

FOLDER = "samples"  # in output_dir; a file for each process


class SampleAudit(TrainerCallback):
    """Writes a line for each forward pass of training: {"step", "epoch", "rows", "documents"}.

    rows: their numbers in the training data. documents: for each row, those it holds a part of, (document, first token
    of it, number of tokens); left out where a row is an example, and of a stream. epoch: of a stream, its pass.

    Args:
        output_dir: of the run.
        rows: of the training; rows numbered beyond them only give a process something to do.
        process: number of this process.
    """

    def __init__(self, output_dir: str | Path, rows, process: int):
        self.folder, self.rows = Path(output_dir) / FOLDER, rows
        self.path = self.folder / f"{process}.jsonl"
        self._beyond = None if getattr(rows, "is_stream", False) else getattr(rows, "beyond", len(rows))

    def on_train_begin(self, args, state, control, **kwargs):
        """Forget what came after the step from which the run goes on; the first process does so for absent ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("*.jsonl"):
            if file == self.path or (args.process_index == 0 and int(file.stem) >= args.world_size):
                lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= state.global_step]
                write_atomically(file, "".join(kept))

    def trained(self, step: int, epoch: int, rows) -> None:
        """The rows of a forward pass of step `step`, as sample ids."""
        numbers = [int(row) for row in rows]
        if self._beyond is not None:
            numbers = [number for number in numbers if number < self._beyond]
        if not numbers:
            return
        line = {"step": step, "epoch": epoch, "rows": numbers}
        documents = [] if self._beyond is None else [self.rows.documents(number) for number in numbers]
        if any(documents):
            line["documents"] = documents
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
