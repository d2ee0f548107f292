"""Several runs on one page: curves on common axes, differing settings, metrics, and how certain differences are."""

import os
import re
import statistics
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..metrics.significance import holm
from ..publishing.run_facts import objective_facts, validated_on
from ..recipes.schema import MINIMAL_PAIRS
from ..storage.record import Record
from ..words import counted, human_time, number_in_words, short_number, with_deviation
from .charts import axes_of, charts_of_runs, lower_is_better
from .charts_page import write_page
from .class_section import MOST_DRAWN, classes_of
from .console import print_table
from .interpret import Measured, between, digits_of, measured
from .report import REPORT, samples_of
from .run_log import RunLog, ends_of, is_number, read_run
from .settings import MISSING, OF_THE_PLACE, in_words

SEED = "training.seed"
LONGEST_LABEL = 16  # characters of a name beside a curve; longer ones are numbers in the table of the runs
MOST_SETTINGS = 5  # that differ and stand in the table of the runs
MOST_PAIRS = 45  # differences between two variants that are listed one by one
FEWEST_SEEDS = 3  # of a variant; the deviation of fewer says next to nothing
IS_IT_SURE = "Is the difference sure?"


def compare_runs(folders: list[Path], out: Path) -> list[dict[str, str]]:
    """Write the page of several runs, and return the differences between variants that it tells, as `differences` does.

    folders: of runs, finished or not; for unfinished ones the last validation counts.

    Raises UserError: a folder that holds no run, the same run twice, or one that has logged nothing yet.
    """
    logs = read_runs(folders)
    differing = settings_that_differ(logs)
    names, variants = ends_of([log.folder for log in logs]), variants_of(logs)
    has_seeds = len(variants) < len(logs)
    labels = list(variants)
    few = list(differing) if len(differing) <= MOST_SETTINGS else []
    place_of = {log.folder: place for place, runs in enumerate(variants.values()) for log in runs}
    units = dict.fromkeys(objective_facts(log.recipe).words.loss for log in logs)
    sure = differences(variants, row_metrics(logs)) if has_seeds else []
    values = {
        "title": f"{len(logs)} runs compared",
        "heading": f"{counted(len(logs), 'run')} compared",
        "notes": notes_of(logs, names, list(units)),
        "rows": [row_of(log, name, few, place_of[log.folder]) for log, name in zip(logs, names)],
        "pages": [page_of(log, out) for log in logs],
        "row_settings": few,
        "row_metrics": row_metrics(logs),
        "row_columns": [name for name, codes in row_columns(logs).items() if len(codes) == 1],
        "number_in_words": number_in_words,
        "names": names,
        "labels": labels if max(map(len, labels)) <= LONGEST_LABEL else [str(n) for n in range(1, len(labels) + 1)],
        "settings": [(path, [in_words(value) for value in row]) for path, row in differing.items()],
        "metrics": metrics_table(logs),
        "differences": sure,
        "is_it_sure": IS_IT_SURE,
        "fewest_seeds": FEWEST_SEEDS,
        "seeds": over_seeds(variants) if has_seeds else [],
        "samples": {name: samples_of(log) for name, log in zip(names, logs) if log.is_finished and samples_of(log)},
    }
    charts = charts_of_runs(variants, next(iter(units)) if len(units) == 1 else "each in its own unit")
    axes = [axes_of(runs[0]) for runs in variants.values()]
    write_page(out, "comparison.html.jinja", charts=charts, axes=axes, runs=[*variants], **values)
    return sure


def read_runs(folders: list[Path]) -> list[RunLog]:
    """The runs; raises UserError for a folder without one, a run that is named twice or has logged nothing."""
    logs = [read_run(folder, shown=False) for folder in folders]
    for first, second in combinations(logs, 2):
        if first.folder.resolve() == second.folder.resolve():
            raise UserError(f"RUN={second.folder} is named twice; name each run once")
    for log in logs:
        if not log.train:
            raise UserError(f"RUN={log.folder} has logged nothing yet, so there is nothing to compare; leave it out")
    return logs


def variants_of(logs: list[RunLog]) -> dict[str, list[RunLog]]:
    """{name: runs that differ only in the seed}; where no two runs do, each run is a variant, named as by `ends_of`.

    Variants are named by what the folders of their runs have in common, else by the settings that differ.
    """
    others = {path: row for path, row in settings_that_differ(logs).items() if path != SEED}
    groups: dict[str, list[RunLog]] = {}
    for number, log in enumerate(logs):
        settings = ", ".join(f"{path.rpartition('.')[2]}={in_words(row[number])}" for path, row in others.items())
        groups.setdefault(settings, []).append(log)
    seeds = [[log.settings.get(SEED) for log in runs] for runs in groups.values()]
    if len(groups) == len(logs) or any(len(set(of_variant)) < len(of_variant) for of_variant in seeds):
        return {name: [log] for name, log in zip(ends_of([log.folder for log in logs]), logs)}
    by_folders = ends_of([common_folder(runs) for runs in groups.values()])
    names = by_folders if len(set(by_folders)) == len(groups) else groups
    return dict(zip(names, groups.values()))


def common_folder(runs: list[RunLog]) -> Path:
    """The common beginning of a variant's folders, without the word seed: v for v/seed-1 and v/seed-2."""
    common = os.path.commonprefix([str(log.folder.resolve()) for log in runs])  # noqa: RUF071 (also of a-1 and a-2)
    return Path(re.sub(r"([-_/.=,]+s(eed)?[-_=]*\d*)?[-_/.=,]*$", "", common))


# ---------------------------------------------------------------------------------------------------- settings


def settings_that_differ(logs: list[RunLog]) -> dict[str, list[Any]]:
    """{path: its value in each run} of the settings that are not the same in all."""
    settings = [log.settings for log in logs]
    paths = dict.fromkeys(path for one in settings for path in one)
    rows = {path: [one.get(path, MISSING) for one in settings] for path in paths if path not in OF_THE_PLACE}
    return {path: row for path, row in rows.items() if any(value != row[0] for value in row[1:])}


def row_metrics(logs: list[RunLog]) -> list[str]:
    """At most three metrics, which all runs have, for the table of the runs: of the test split if there are any."""
    common = [name for name in logs[0].metrics if all(name in log.metrics for log in logs)]
    common = [name for name in common if "unigram" not in name]
    chosen = [name for name in common if name.startswith("test_")] or common
    return sorted(chosen, key=lambda name: name.endswith("_loss"))[:3]


def row_columns(logs: list[RunLog]) -> dict[str, set[str]]:
    """{column that a sweep has measured: a key for each code by which it was measured}."""
    codes: dict[str, set[str]] = {}
    for log in logs:
        for name, column in log.columns.items():
            if is_number(column["value"]):
                codes.setdefault(name, set()).add(Record.of(column).key)
    return codes


def row_of(log: RunLog, name: str, settings: list[str], variant: int) -> dict[str, Any]:
    """The row of a run in the table of the runs. settings: those that it shows. variant: the number of its variant."""
    parameters = log.run.get("parameters")
    total = log.total_steps
    return {
        "name": name,
        "variant": variant,
        "folder": str(log.folder),
        "state": "finished" if log.is_finished else f"{log.steps / total:.0%} done" if total else "not finished",
        "settings": [in_words(log.settings.get(path, MISSING)) for path in settings],
        "columns": {name: column["value"] for name, column in log.columns.items()},
        "steps": f"{log.steps:,}",
        "tokens": short_number(log.tokens) if log.tokens else "-",
        "time": human_time(log.seconds) if log.seconds else "-",
        "parameters": short_number(parameters) if parameters else "-",
    }


def page_of(log: RunLog, out: Path) -> str:
    """The page of a run, as a link from `out`; empty where it does not lie below the folder of `out`."""
    page, beside = (log.folder / REPORT).resolve(), out.resolve().parent
    return page.relative_to(beside).as_posix() if page.is_file() and page.is_relative_to(beside) else ""


# ---------------------------------------------------------------------------------------------------- metrics


def metrics_table(logs: list[RunLog]) -> list[dict[str, Any]]:
    """A row for each metric that a run has, and for the F1 of each class: {"split", "metric", "key", "cells"}, a cell
    for each run; None for a run without it."""
    of_runs = [{f"{one.split}_{one.metric}": one for one in [*measured(log), *f1_of_classes(log)]} for log in logs]
    rows = []
    for key in dict.fromkeys(key for of_run in of_runs for key in of_run):
        row: list[Measured | None] = [of_run.get(key) for of_run in of_runs]
        numbers = [one for one in row if one is not None and one.value == one.value]
        if len(numbers) > 1:
            values = {one.value for one in numbers}
            best = (min if lower_is_better(numbers[0].metric) else max)(values)
            for one in numbers:
                one.is_best = one.value == best and len(values) > 1
        split, _, metric = key.partition("_")
        rows.append({"split": split, "metric": metric.replace("_", " "), "key": key, "cells": row})
    return rows


def f1_of_classes(log: RunLog) -> Iterator[Measured]:
    """The F1 of each class in each split of a run; of more than MOST_DRAWN classes, those with most examples."""
    for report in classes_of(log):
        for one in sorted(report.get("classes") or [], key=lambda row: -row["support"])[:MOST_DRAWN]:
            yield Measured(report["split"], f"F1 of {one['name']}", one["f1"])


def differences(variants: dict[str, list[RunLog]], metrics: list[str]) -> list[dict[str, str]]:
    """The difference of two variants in each metric, over their seeds, and how certain it is: {column: words} of each.

    The p of all pairs of a metric by Holm. A variant of one run, or whose runs do not scatter, is left out; with many
    variants each is compared with the best one.
    """
    rows = []
    for key in metrics:
        values = {name: {log.settings[SEED]: log.metrics[key] for log in runs} for name, runs in variants.items()}
        values = {name: of_seeds for name, of_seeds in values.items() if len({*of_seeds.values()}) > 1}
        means = {name: statistics.fmean(of_seeds.values()) for name, of_seeds in values.items()}
        pairs = list(combinations(values, 2))
        if len(pairs) > MOST_PAIRS / 3:
            best = (min if lower_is_better(key.partition("_")[2]) else max)(means, key=means.__getitem__)
            pairs = [(name, best) for name in values if name != best]
        tests = [difference_over_seeds(values[first], values[second]) for first, second in pairs]
        corrected = holm([float(test.pvalue) for _, test in tests])
        for (first, second), (by, test), p in zip(pairs, tests, corrected):
            low, high = test.confidence_interval(0.95)
            too_few = min(len(values[first]), len(values[second])) < FEWEST_SEEDS
            row = {"metric": key.replace("_", " "), "first": first, "second": second}
            row["difference"] = f"{means[second] - means[first]:+.{digits_of(low, high)}f}"
            row["95 % interval"] = between(low, high)[1:-1].removeprefix("95 %: ")
            row["sure?"] = "too few seeds" if too_few else "yes" if p < 0.05 else "no"
            of_others = key.startswith("validation_") and is_of_other_rows([*variants[first], *variants[second]])
            rows.append(row | {"by": f"{by}, p = {p:.4f}" + ("; of different rows" if of_others else "")})
    return rows[:MOST_PAIRS]


def difference_over_seeds(first: dict[int, float], second: dict[int, float]) -> tuple[str, Any]:
    """(the name of a t-test, what scipy makes of it) of second minus first, each {seed: value}.

    Paired by seed where both have the same seeds, because a seed moves both alike; else, and where all differences are
    equal, Welch's (1947), which allows different variances.
    """
    from scipy.stats import ttest_ind, ttest_rel

    if first.keys() == second.keys() and len({round(second[seed] - first[seed], 12) for seed in first}) > 1:
        return "paired by seed", ttest_rel([second[seed] for seed in first], [*first.values()])
    return "Welch", ttest_ind([*second.values()], [*first.values()], equal_var=False)


def print_differences(rows: list[dict[str, str]]) -> None:
    """Print the differences between variants, with the words of the page; nothing where there are none."""
    if rows:
        title = f"{IS_IT_SURE} Mean of the second variant minus mean of the first; p by Holm for all pairs of a metric"
        print_table(title, list(rows[0]), [list(row.values()) for row in rows], numbers=slice(3, 5))


def over_seeds(variants: dict[str, list[RunLog]]) -> list[dict[str, Any]]:
    """The variants and their metrics over the seeds: {"name", "runs", "metrics": {name: words}} of each."""
    table = []
    for name, runs in variants.items():
        rows = compared({str(log.folder): log.metrics for log in runs})
        words = {key: with_deviation(row["mean"], row["deviation"]) for key, row in rows.items()}
        table.append({"name": name, "runs": len(runs), "metrics": words})
    return table


def compared(runs: dict[str, dict[str, float]]) -> dict[str, dict]:
    """{metric: {"mean", "deviation", "values": {run: value}}} of the metrics that all runs have.

    deviation: the standard deviation of a sample (divided by n - 1); None of a single run.
    """
    summary = {}
    for name in next(iter(runs.values())):
        if all(metrics.get(name) is not None for metrics in runs.values()):
            values = {run: metrics[name] for run, metrics in runs.items()}
            spread = statistics.stdev(values.values()) if len(values) > 1 else None
            summary[name] = {"mean": statistics.fmean(values.values()), "deviation": spread, "values": values}
    return summary


def is_of_other_rows(logs: list[RunLog]) -> bool:
    """Whether validations of some runs measured other rows than those of others; pairs that choose a model are none."""
    of_rows = [log for log in logs if log.section("evaluation").get("best_metric") != MINIMAL_PAIRS]
    return len({(log.run.get("data") or {}).get("validated_on") for log in of_rows} - {None}) > 1


def notes_of(logs: list[RunLog], names: list[str], units: list[str]) -> list[str]:
    """Sentences that a reader must know before comparing the runs."""
    notes = [f"{log.name}: {sentence}" for log in logs for sentence in log.damaged]
    prints = {(log.run.get("data") or {}).get("fingerprint") for log in logs}
    if len(prints) > 1:
        notes.append("The runs did not train on the same data; their fingerprints differ.")
    if is_of_other_rows(logs):
        notes.append("Their validations did not measure the same rows.")
    for name, codes in row_columns(logs).items():
        if len(codes) > 1:
            notes.append(f"{name} is left out: runs were measured by different code; the sweep measures them again.")
    if len(units) > 1:
        notes.append(f"Their losses do not compare: they are in {' and in '.join(units)}.")
    some = sorted({validated_on(log.run) for log in logs} - {""})
    if some:
        notes.append(f"Validations during training were {' or '.join(some)}; metrics of finished runs are of all rows.")
    unfinished = [name for log, name in zip(logs, names) if not log.is_finished]
    if unfinished:
        notes.append(f"Not finished: {', '.join(unfinished)}; their last validation counts.")
    return notes
