"""The audit of samples: files that record which rows and documents each step of a run has trained."""

import json
from pathlib import Path

from transformers import TrainerCallback

from ...storage.atomic import write_atomically

FOLDER = "samples"  # in output_dir; holds a file for each process


class SampleAudit(TrainerCallback):
    """Writes a line for each forward pass of training: {"step", "epoch", "rows", "documents"}.

    rows: row numbers in the training data. documents: for each row, the documents of which it holds a part, as
    (document, first token, number of tokens); left out for streams, and if each row is an example. epoch: for a
    stream, the number of its pass.

    Args:
        output_dir: of the run.
        rows: as they are trained (data/sample_ids.py); sample ids of no row only fill the batches of a process.
        process: number of this process.
    """

    def __init__(self, output_dir: str | Path, rows, process: int):
        self.folder, self.rows = Path(output_dir) / FOLDER, rows
        self.path = self.folder / f"{process}.jsonl"

    def on_train_begin(self, args, state, control, **kwargs):
        """Delete lines of steps after the resumed one; the first process also does it for processes that are gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("*.jsonl"):
            if file == self.path or (args.process_index == 0 and int(file.stem) >= args.world_size):
                lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= state.global_step]
                write_atomically(file, "".join(kept))

    def trained(self, step: int, epoch: int, rows) -> None:
        """Record the rows of a forward pass in step `step`. rows: their sample ids."""
        numbers = [number for number in map(int, rows) if self.rows.number_in_split(number) is not None]
        if not numbers:
            return
        line = {"step": step, "epoch": epoch, "rows": numbers}
        documents = [self.rows.rows.documents(number) for number in numbers]
        if any(documents):
            line["documents"] = documents
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
