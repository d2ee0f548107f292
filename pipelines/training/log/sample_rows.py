"""Rows of the training data, written into the run's folder at its beginning for its report (rows.json)."""

import json
from io import StringIO

import torch
from rich.console import Console

from ...objectives.prepare import PreparedData
from ...objectives.showing import spread
from ...reporting.run_log import ROWS_FILE
from ...storage.atomic import write_atomically
from ..checkpoints.run_folder import RunFolder

SHOWN, MOST_CHARACTERS = 3, 20_000


def record_rows(folder: RunFolder, data: PreparedData) -> None:
    """Write what three rows are like, and whether they are pictures.

    A run that goes on keeps those it has. Rows of a stream are not read: what is read of one is not trained on again.
    """
    path, train = folder.path / ROWS_FILE, data.rows["train"]
    if path.exists() or train.is_stream:
        return
    with torch.random.fork_rng(devices=[]):  # no number of the training is drawn here, whatever a collator draws
        console = Console(file=StringIO(), force_terminal=True, color_system="standard", soft_wrap=True, width=100)
        console.print(data.objective.legend())
        legend, rows = taken(console), []
        for number in spread(len(train), SHOWN):
            data.objective.show(console, train, number, train[number])
            rows.append(taken(console))
        found = {"legend": legend, "rows": rows, "is_picture": "pixel_values" in train[0]}
    write_atomically(path, json.dumps(found, ensure_ascii=False))


def taken(console: Console) -> str:
    """What has been printed since the last call, with the colours of a terminal."""
    text = console.file.getvalue()
    console.file = StringIO()
    return text[:MOST_CHARACTERS]
