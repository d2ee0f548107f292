"""The report page of a run, during training and afterwards; its errors are printed and never end the run."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import torch
from rich.console import Console
from transformers import TrainerCallback

from ...objectives.data import Data
from ...objectives.showing import legend
from ...reporting.plots import can_plot
from ...reporting.report import write_report
from ...reporting.run_log import ROWS_FILE
from ...storage.atomic import write_atomically
from ...words import say
from ..checkpoints.run_folder import RunFolder

MOST_OF_TIME = 0.02  # share of the training's time that writing the page may take
SHOWN, MOST_CHARACTERS = 3, 20_000  # rows of the training data on it


@contextmanager
def spoken(what: str, folder: Path) -> Iterator[None]:
    """Print errors of the block as one line: a failed report must not end the run."""
    try:
        yield
    except Exception as error:  # a full disk, a plug-in's metric that is no number, a bug of ours, ...
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        say(f"{what} of {folder} could not be written ({reason}); the run is well, and anyformer report tries again")


class ReportPage(TrainerCallback):
    """Writes report.html when training begins, and after validations and checkpoints, within a share of the time."""

    def __init__(self, folder: Path):
        self.folder, self.took, self.written, self.has_failed = folder, 0.0, 0.0, False

    def on_train_begin(self, args, state, control, **kwargs):
        self.write(state)

    def on_evaluate(self, args, state, control, **kwargs):
        """Write the page, unless that would take more than MOST_OF_TIME of the time since it was last written."""
        if time.monotonic() - self.written >= self.took / MOST_OF_TIME:
            self.write(state)

    on_save = on_evaluate

    def write(self, state) -> None:
        if not state.is_world_process_zero or self.has_failed:
            return
        begun, self.has_failed = time.monotonic(), True
        with spoken("report.html", self.folder):
            write_report(self.folder)
            self.has_failed = False  # after an error it stays true, so that the error is printed only once
        self.written = time.monotonic()
        self.took = self.written - begun


def draw_card_picture(folder: Path) -> None:
    """Draw the loss curve for the model card, if matplotlib is installed."""
    if can_plot():
        from ...reporting.figures import draw_loss

        with spoken("loss.png", folder):
            draw_loss(folder)


def record_rows(folder: RunFolder, data: Data) -> None:
    """Write SHOWN rows of the training data as text into rows.json, and whether they are pictures.

    A resumed run keeps its rows.json. Rows of a stream are not shown.
    """
    path, train = folder.path / ROWS_FILE, data.rows["train"]
    numbers = train.samples(SHOWN)
    if path.exists() or not numbers:
        return
    with torch.random.fork_rng(devices=[]):  # collators may draw random numbers
        console = Console(file=StringIO(), force_terminal=True, color_system="standard", soft_wrap=True, width=100)
        console.print(legend(data.reads.legend))
        words, rows = taken(console), []
        for number in numbers:
            data.reads.show(console, data, train, number, train[number])
            rows.append(taken(console))
        record = {"legend": words, "rows": rows, "is_picture": "pixel_values" in train[0]}
    write_atomically(path, json.dumps(record, ensure_ascii=False))


def taken(console: Console) -> str:
    """The text that was printed since the last call, with the colours of a terminal; at most MOST_CHARACTERS."""
    text = console.file.getvalue()
    console.file = StringIO()
    return text[:MOST_CHARACTERS]
