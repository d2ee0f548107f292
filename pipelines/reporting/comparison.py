"""Several runs on one page: curves on common axes, the settings that differ, metrics and what is sure of them."""

import json
import statistics
from itertools import combinations
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..publishing.objective_facts import objective_facts
from ..words import counted, human_time, number_in_words, short_metric, short_number
from .charts import axes_of, charts_of_runs, lower_is_better
from .interpret import between
from .metrics_table import Measured, measured, newcombe
from .page import write_page
from .run_log import RunLog, is_number, read_run
from .settings import MISSING, in_words

PREDICTIONS = "predictions.jsonl"  # of anyformer evaluate RUN TASK --predictions RUN/predictions.jsonl
COUNTS_RIGHT = ("accuracy", "exact_match")  # shares of predictions that are equal to their reference
SEED = "training.seed"
NO_SETTINGS = ("name", "description", "training.output_dir")
LONGEST_LABEL = 16  # characters
MOST_PAIRS = 45  # differences between two runs that are told one by one


def compare_runs(folders: list[Path], out: Path, *, varied: list[str] | None = None) -> int:
    """Write the page of several runs, and return its bytes.

    Args:
        folders: of runs, finished or not; of the latter the last validation counts.
        varied: paths of the settings that a sweep has varied, such as training.learning_rate, by which the runs are
            then called; None: they are called by their folders.

    Raises:
        UserError: a folder that holds no run, the same run twice, or one that has logged nothing yet.
    """
    logs = read_runs(folders)
    differing = settings_that_differ(logs)
    names = names_of(logs, varied)
    units = dict.fromkeys(objective_facts(log.recipe).loss_unit for log in logs)
    metrics = metrics_table(logs, names)
    values = {
        "title": f"{len(logs)} runs compared",
        "heading": f"{counted(len(logs), 'run')} compared",
        "notes": notes_of(logs, names, list(units)),
        "rows": [row_of(log, name, differing, varied) for log, name in zip(logs, names)],
        "row_settings": row_settings(differing, varied),
        "row_metrics": row_metrics(logs),
        "row_columns": row_columns(logs),
        "number_in_words": number_in_words,
        "names": names,
        "labels": labels_of(names),
        "folders": [str(log.folder) for log in logs],
        "settings": [(path, [in_words(value) for value in row]) for path, row in differing.items()],
        "metrics": metrics,
        "pairs": pairs_of(logs, names),
        "seeds": over_seeds(logs, differing),
    }
    return write_page(
        out,
        "comparison.html.jinja",
        charts=charts_of_runs(logs, names, next(iter(units)) if len(units) == 1 else "each in its own unit"),
        axes=[axes_of(log) for log in logs],
        runs=names,
        **values,
    )


def read_runs(folders: list[Path]) -> list[RunLog]:
    """The runs; raises UserError for a folder without one, for one that is named twice or has logged nothing."""
    logs = [read_run(folder) for folder in folders]
    for first, second in combinations(logs, 2):
        if first.folder.resolve() == second.folder.resolve():
            raise UserError(f"RUN={second.folder} is named twice; name each run once")
    for log in logs:
        if not log.train:
            raise UserError(
                f"RUN={log.folder} has logged nothing yet, so there is nothing to compare; leave it out, or go on with "
                f"it by the same training command"
            )
    return logs


def names_of(logs: list[RunLog], varied: list[str] | None = None) -> list[str]:
    """Short names that tell the runs apart: by what was varied, else the ends of their folders' paths."""
    if varied:
        given = [
            ", ".join(f"{path.rpartition('.')[2]}={in_words(log.settings.get(path))}" for path in varied)
            for log in logs
        ]
        if len(set(given)) == len(given):
            return given
        given = [f"{name}, seed={in_words(log.settings.get(SEED))}" for name, log in zip(given, logs)]
        if len(set(given)) == len(given):
            return given
    paths = [log.folder.resolve().parts for log in logs]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def labels_of(names: list[str]) -> list[str]:
    """What stands beside the curves: the names where they are short, else numbers, which the table of the runs has."""
    is_short = max(map(len, names)) <= LONGEST_LABEL
    return names if is_short else [str(number) for number in range(1, len(names) + 1)]


# ---------------------------------------------------------------------------------------------------- settings


def settings_that_differ(logs: list[RunLog]) -> dict[str, list[Any]]:
    """{path: its value in each run} of the settings that are not the same in all."""
    settings = [log.settings for log in logs]
    paths = dict.fromkeys(path for one in settings for path in one)
    rows = {path: [one.get(path, MISSING) for one in settings] for path in paths if path not in NO_SETTINGS}
    return {path: row for path, row in rows.items() if any(value != row[0] for value in row[1:])}


def row_settings(differing: dict[str, list[Any]], varied: list[str] | None) -> list[str]:
    """The settings that stand in the table of the runs: those varied, else what differs where it is little."""
    chosen = list(varied or []) + [path for path in differing if path == SEED and path not in (varied or [])]
    if not varied:
        chosen = list(differing) if len(differing) <= 5 else []
    return chosen


def row_metrics(logs: list[RunLog]) -> list[str]:
    """At most three metrics that stand in the table of the runs: those of the test split that all have, else others."""
    common = [name for name in logs[0].metrics if all(name in log.metrics for log in logs)]
    common = [name for name in common if "unigram" not in name]
    chosen = [name for name in common if name.startswith("test_")] or common
    return sorted(chosen, key=lambda name: name.endswith("_loss"))[:3]


def row_columns(logs: list[RunLog]) -> list[str]:
    """What a sweep has measured of the runs beside their metrics."""
    return list(dict.fromkeys(name for log in logs for name, value in log.columns.items() if is_number(value)))


def row_of(log: RunLog, name: str, differing: dict[str, list[Any]], varied: list[str] | None) -> dict[str, Any]:
    """What the table of the runs says of one."""
    parameters = log.run.get("parameters")
    total = log.total_steps
    return {
        "name": name,
        "folder": str(log.folder),
        "state": "finished" if log.is_finished else f"{log.steps / total:.0%} done" if total else "not finished",
        "settings": [in_words(log.settings.get(path, MISSING)) for path in row_settings(differing, varied)],
        "columns": log.columns,
        "steps": f"{log.steps:,}",
        "tokens": short_number(log.tokens) if log.tokens else "-",
        "time": human_time(log.seconds) if log.seconds else "-",
        "parameters": short_number(parameters) if parameters else "-",
    }


# ---------------------------------------------------------------------------------------------------- metrics


def metrics_table(logs: list[RunLog], names: list[str]) -> list[dict[str, Any]]:
    """A row for each metric that a run has: {"split", "metric", "key", "cells"}, a cell for each run.

    A cell: {"words", "interval", "is_best"}; None for a run without it.
    """
    found = [{f"{one.split}_{one.metric}": one for one in measured(log)} for log in logs]
    rows = []
    for key in dict.fromkeys(key for of_run in found for key in of_run):
        row: list[Measured | None] = [of_run.get(key) for of_run in found]
        known = [one for one in row if one is not None and one.value == one.value]
        best = (min if lower_is_better(known[0].metric) else max)(one.value for one in known) if known else None
        cells = [
            None
            if one is None
            else {"words": one.words, "interval": one.interval, "is_best": len(known) > 1 and one.value == best}
            for one in row
        ]
        split, _, metric = key.partition("_")
        rows.append({"split": split, "metric": metric.replace("_", " "), "key": key, "cells": cells})
    return rows


def pairs_of(logs: list[RunLog], names: list[str]) -> list[dict[str, Any]]:
    """What two runs differ by in each share of examples, and how sure that is; of the runs with the best one where
    they are many.

    {"metric", "first", "second", "difference", "interval", "verdict", "test"} of each.
    """
    kept = [kept_answers(log) for log in logs]
    found = []
    tables = [{f"{one.split}_{one.metric}": one for one in measured(log)} for log in logs]
    for key in dict.fromkeys(key for table in tables for key in table):
        having = [number for number, table in enumerate(tables) if key in table and table[key].low is not None]
        pairs = list(combinations(having, 2))
        if len(pairs) > MOST_PAIRS / 3 and having:
            best = max(having, key=lambda number: tables[number][key].value)
            pairs = [(number, best) for number in having if number != best]
        for a, b in pairs:
            first, second = tables[a][key], tables[b][key]
            low, high = newcombe(first, second)
            row = {
                "metric": f"{first.split} {first.metric.replace('_', ' ')}",
                "first": names[a],
                "second": names[b],
                "difference": f"{second.value - first.value:+.4f}",
                "interval": between(low, high)[1:-1].removeprefix("95 %: "),
                "sure": low > 0 or high < 0,
                "test": "Newcombe",
            }
            p = paired_test(kept[a], kept[b], first, second)
            if p is not None:
                row |= {"sure": p < 0.05, "test": f"McNemar, exact: p = {p:.4f}"}
            found.append(row)
    return found[:MOST_PAIRS]


def kept_answers(log: RunLog) -> list[dict] | None:
    """The single answers that `anyformer evaluate ... --predictions` has left in the run's folder; None: none."""
    file = log.folder / PREDICTIONS
    if not file.is_file():
        return None
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [{"row": row["row"], "prediction": row["prediction"], "reference": row["reference"]} for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} holds no predictions of anyformer evaluate ({error}); write it again") from error


def paired_test(first: list[dict] | None, second: list[dict] | None, a: Measured, b: Measured) -> float | None:
    """McNemar's p where both runs' answers to the same examples were kept, and are those that were measured."""
    if a.metric not in COUNTS_RIGHT or not first or not second or len(first) != len(second):
        return None
    if any(one["row"] != other["row"] or one["reference"] != other["reference"] for one, other in zip(first, second)):
        return None
    import numpy as np

    from ..metrics.comparison import mcnemar

    right = [np.array([row["prediction"] == row["reference"] for row in rows]) for rows in (first, second)]
    if any(abs(float(of_run.mean()) - one.value) > 1e-6 for of_run, one in zip(right, (a, b))):
        return None  # answers of another split, or of the model at another time
    return mcnemar(*right)[2]


def over_seeds(logs: list[RunLog], differing: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Runs that differ in the seed alone, together: {"settings", "runs", "metrics": {name: words}}."""
    if SEED not in differing:
        return []
    others = [path for path in differing if path != SEED]
    groups: dict[str, list[int]] = {}
    for number in range(len(logs)):
        words = ", ".join(f"{path} = {in_words(differing[path][number])}" for path in others)
        groups.setdefault(words or "all", []).append(number)
    found = []
    for words, numbers in groups.items():
        if len(numbers) > 1:
            common = [key for key in logs[numbers[0]].metrics if all(key in logs[n].metrics for n in numbers)]
            values = {key: [logs[n].metrics[key] for n in numbers] for key in common}
            told = {
                key: f"{short_metric(statistics.fmean(row))} ± {short_metric(statistics.stdev(row))}"
                for key, row in values.items()
            }
            found.append({"settings": words, "runs": len(numbers), "metrics": told})
    return found


def notes_of(logs: list[RunLog], names: list[str], units: list[str]) -> list[str]:
    """Sentences on what a reader must know before comparing."""
    found = [f"{log.name}: {sentence}" for log in logs for sentence in log.damaged]
    prints = {(log.run.get("data") or {}).get("fingerprint") for log in logs}
    if len(prints) > 1:
        found.append("The runs did not train on the same data; their fingerprints differ.")
    if len(units) > 1:
        found.append(f"Their losses do not compare: they are in {' and in '.join(units)}.")
    open_ones = [name for log, name in zip(logs, names) if not log.is_finished]
    if open_ones:
        found.append(f"Not finished: {', '.join(open_ones)}; their last validation counts.")
    return found
