"""A bar over the batches of an evaluation, on a terminal."""

import os
import sys

from transformers import TrainerCallback


class EvaluationBar(TrainerCallback):
    """Shows how many batches are measured while Trainer evaluates, on the terminal of the first process."""

    def __init__(self):
        self._bar = None

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if not sys.stdout.isatty() or os.environ.get("RANK", "0") != "0":
            return
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, transient=True)
            self._bar.start()
            total = len(eval_dataloader) if hasattr(eval_dataloader, "__len__") else None
            self._task = self._bar.add_task("measuring, batch", total=total)
        self._bar.advance(self._task)

    def on_evaluate(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
