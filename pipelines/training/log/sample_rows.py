"""Rows of the training data, written into the run's folder at its beginning for its report (rows.json)."""

import json
from io import StringIO

import torch
from rich.console import Console

from ...objectives.prepare import PreparedData
from ...objectives.showing import as_png, spread
from ...reporting.run_log import ROWS_FILE
from ...storage.atomic import write_atomically
from ..checkpoints.run_folder import RunFolder

SHOWN, MOST_CHARACTERS, MOST_TOKENS = 3, 20_000, 48


def record_rows(folder: RunFolder, data: PreparedData) -> None:
    """Write what three rows are like, and one text or image of them to look into the model with.

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
        found = {"legend": legend, "rows": rows} | one_to_look_with(data, train[0])
    write_atomically(path, json.dumps(found, ensure_ascii=False))


def taken(console: Console) -> str:
    """What has been printed since the last call, with the colours of a terminal."""
    text = console.file.getvalue()
    console.file = StringIO()
    return text[:MOST_CHARACTERS]


def one_to_look_with(data: PreparedData, row: dict) -> dict[str, str]:
    """{"text": of a row's first tokens} or {"image": of a row, as a PNG}; {} where a row is neither."""
    ids, pixels = row.get("input_ids"), row.get("pixel_values")
    if data.tokenizer is not None and torch.is_tensor(ids) and ids.dim() == 1:
        return {"text": data.tokenizer.decode(ids[:MOST_TOKENS], skip_special_tokens=True)}
    if torch.is_tensor(pixels) and pixels.dtype == torch.uint8 and pixels.dim() == 3:
        return {"image": as_png(pixels)}
    return {}
