"""The page of a story: its steps beside each other, their curves, and what the model of each says."""

import json
from pathlib import Path
from typing import Any

from ..publishing.objective_facts import objective_facts
from ..words import counted, human_time, short_number
from .charts import axes_of, charts_of_runs
from .charts_page import write_page
from .report import REPORT, kind_of, main_metrics, samples_of
from .run_log import RUN_FILE, RunLog, read_run

TOKENIZER = "tokenizer.json"  # of a step that has trained a tokenizer alone


def write_story_page(folder: Path, description: str, steps: dict[str, Path]) -> Path:
    """Write report.html beside the folders of the steps, from what lies in them, and return it.

    steps: {name: folder}; those that have not begun are said to wait.
    """
    logs = {name: read_run(place) for name, place in steps.items() if (place / RUN_FILE).is_file()}
    begun = {name: log for name, log in logs.items() if log.train}
    units = dict.fromkeys(objective_facts(log.recipe).loss_unit for log in begun.values())
    unit = next(iter(units)) if len(units) == 1 else "each in its own unit"
    write_page(
        folder / REPORT,
        "story.html.jinja",
        charts=charts_of_runs({name: [log] for name, log in begun.items()}, unit),
        axes=[axes_of(log) for log in begun.values()],
        runs=[*begun],
        title=f"{folder.resolve().name}: a story in {counted(len(steps), 'step')}",
        description=description,
        rows=[row_of(name, place, logs.get(name)) for name, place in steps.items()],
        total=human_time(sum(log.seconds or 0 for log in logs.values())),
        samples={name: samples_of(log) for name, log in logs.items() if log.is_finished and samples_of(log)},
        page=REPORT,
    )
    return folder / REPORT


def row_of(name: str, place: Path, log: RunLog | None) -> dict[str, Any]:
    """What the table says of a step."""
    row = {"name": name, "kind": "", "metrics": [], "parameters": "", "steps": "", "tokens": "", "time": "", "link": ""}
    if log is None and not (place / TOKENIZER).is_file():
        return row | {"state": "not begun"}
    if log is None:
        vocabulary = json.loads((place / TOKENIZER).read_text(encoding="utf-8"))["model"]["vocab"]
        return row | {"kind": f"a vocabulary of {counted(len(vocabulary), 'token')}", "state": "finished"}
    total = f" of {log.total_steps:,}" if log.total_steps and not log.is_finished else ""
    return row | {
        "kind": kind_of(log),
        "metrics": [f"{one.split} {one.metric.replace('_', ' ')} {one.words}" for one in main_metrics(log)],
        "parameters": short_number(log.run.get("parameters") or 0),
        "steps": f"{log.steps:,}{total}",
        "tokens": short_number(log.tokens) if log.tokens else "",
        "time": human_time(log.seconds) if log.seconds else "",
        "link": f"{place.name}/{REPORT}" if (place / REPORT).is_file() else "",
        "state": "finished" if log.is_finished else "not finished",
    }
