"""Sample rows of the training data, written to rows.json in the run's folder for its report."""

import json
from io import StringIO

import torch
from rich.console import Console

from ...objectives.data import Data
from ...objectives.showing import legend
from ...reporting.run_log import ROWS_FILE
from ...storage.atomic import write_atomically
from ..checkpoints.run_folder import RunFolder

SHOWN, MOST_CHARACTERS = 3, 20_000


def record_rows(folder: RunFolder, data: Data) -> None:
    """Write SHOWN rows as text, and whether they are pictures.

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
