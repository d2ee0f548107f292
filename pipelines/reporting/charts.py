"""The curves of runs as plain data, which the page's script and matplotlib draw alike.

A chart: {"id", "title", "unit", "kind", "series", "marks"}. kind: how its numbers are written (number, percent, rate).
zero: its y axis begins at 0. across: what its x are, such as layers; without it x are steps, and the "axes" of each run
say which tokens and seconds they stand for.
A series: {"name", "run", "x", "y"} and optionally "noisy" (drawn faint below its moving mean), "points" (each value is
a separate measurement), "of" ("training" or "validation"), "low" and "high" (y is the mean of seeds between them).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..plugins import less_is_better
from ..publishing.run_facts import validated_on
from ..recipes.optimizer_rows import RATES
from ..recipes.schema import MINIMAL_PAIRS
from ..words import counted, number_in_words
from .run_log import RunLog, is_metric, is_number

MOST = 1000  # points of a series, more than a chart has pixel columns on a screen


@dataclass(frozen=True)
class Quantity:
    """A quantity measured during training: its key in the log, and how it is drawn."""

    key: str
    title: str
    unit: str
    kind: str = "number"
    zero: bool = True
    noisy: bool = False


OF_TRAINING = (
    Quantity("learning_rate", "Learning rate", "training.learning_rate"),
    *(Quantity(name, f"Learning rate of {word}", f"training.{name}") for name, word in RATES.items()),
    Quantity("grad_norm", "Gradient norm", "before clipping", noisy=True),
    Quantity("tokens_per_second", "Throughput", "tokens per second", noisy=True),
    Quantity("mfu", "MFU", "share of the peak FLOP/s", "percent", noisy=True),
    Quantity("data_share", "Waiting for data", "share of the time", "percent", noisy=True),
    Quantity("memory_gb", "Memory", "GB, the most so far"),
)
KNOWN = {"step", "time", "epoch", "stage", "loss", "tokens", "skipped_steps", "grad_norm_warning", "mean_of_steps"}
KNOWN |= {quantity.key for quantity in OF_TRAINING}
OF_ROUTERS = (
    Quantity("router_load_cv", "Balance of the experts", "deviation of their loads, of an equal share"),
    Quantity("router_entropy", "Entropy of the routers", "nats"),
    Quantity("router_dropped", "Dropped", "share of the tokens' choices", "percent"),
    Quantity("router_aux_loss", "Balance loss of the routers", "before its coefficient", zero=False),
    Quantity("router_z_loss", "z-loss of the routers", "before its coefficient"),
)


def thinned(x: list, y: list, *columns: list) -> tuple[list, ...]:
    """At most about MOST points: the lowest and the highest y of each stretch, so that no spike is lost."""
    if len(x) <= MOST:
        return x, y, *columns
    size, places = len(x) / (MOST // 2), set()
    for number in range(MOST // 2):
        stretch = range(int(number * size), min(len(x), int((number + 1) * size)))
        places |= {min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)}
    chosen = sorted(places | {0, len(x) - 1})
    return tuple([column[place] for place in chosen] for column in (x, y, *columns))


def rounded(value: float) -> float:
    """The value to five digits: more than can be seen, and the page is half as large."""
    return float(f"{value:.5g}")


def series(lines: Iterable[dict], key: str, name: str, **more: Any) -> dict | None:
    """The values of a key in some lines of a log; None if it is in none of them."""
    return curve([values_of(lines, key)], name, 0, **more)


def values_of(lines: Iterable[dict], key: str) -> dict[int, float]:
    """{step: value} of a key, without NaN and infinity."""
    return {line["step"]: line[key] for line in lines if is_number(line.get(key)) and line[key] - line[key] == 0}


def curve(of_runs: list[dict], name: str, run: int, **more: Any) -> dict | None:
    """The series of one run's {x: y}, or the mean of several runs' at each x that all of them have."""
    first, *others = [values for values in of_runs if values] or [{}]
    points = {x: [y, *(one[x] for one in others)] for x, y in first.items() if all(x in one for one in others)}
    if not points:
        return None
    summaries = {"y": fmean, "low": min, "high": max} if others else {"y": fmean}
    x, *columns = thinned(list(points), *(list(map(summary, points.values())) for summary in summaries.values()))
    rounds = ([rounded(value) for value in column] for column in columns)
    return {"name": name, "run": run, "x": x} | dict(zip(summaries, rounds)) | more


def chart(name: str, title: str, unit: str, found: list[dict | None], **more: Any) -> dict | None:
    """A chart of those series that are not None; None if all are."""
    present = [one for one in found if one is not None]
    if present and all(len(one["x"]) == 1 for one in present):  # points without a curve: the unit names their values
        values = [f"{one['name']} {number_in_words(one['y'][0])}" for one in present]
        unit = ", ".join([unit, *values] if unit else values)
    result = {"id": name, "title": title, "unit": unit, "kind": "number", "series": present, "marks": []}
    return result | more if present else None


def axes_of(log: RunLog) -> dict[str, list[float]]:
    """The run's axes, thinned; the page interpolates linearly between their points."""
    columns, every = log.axes, max(1, len(log.train) // 300)
    chosen = sorted({*range(0, len(log.train), every), len(log.train) - 1} - {-1})
    return {
        name: [rounded(values[place]) if name != "step" else values[place] for place in chosen]
        for name, values in columns.items()
    }


def marks_of(log: RunLog) -> list[dict]:
    """Steps marked by a line across a chart: the best one, restarts of warm-up and decay, the beginnings of stages."""
    best, marks = log.run.get("best_step"), []
    if best and best != log.steps:
        marks.append({"x": best, "label": "best"})
    marks += [{"x": step, "label": "restart"} for step in log.section("training").get("restarts") or []]
    stages = log.run.get("stages") or []
    return marks + [{"x": each["steps"][0], "label": f"stage {n}"} for n, each in enumerate(stages, 1) if n > 1]


# ---------------------------------------------------------------------------------------------------- one run


def is_part_of_loss(name: str) -> bool:
    return name.startswith("loss_") or name.endswith("_loss")


def parts_in(log: RunLog) -> list[str]:
    """The keys of the parts of the loss that a run has logged."""
    return [key for key in _keys(log.train) if is_part_of_loss(key) and not key.startswith("router_")]


def of_fewer_steps(log: RunLog) -> str:
    """Which values of the training's curves are means of fewer steps than lie between two of them; "" if none is."""
    found = [(counted(line["mean_of_steps"], "step"), line["step"]) for line in log.train if "mean_of_steps" in line]
    more = f" and {len(found) - 1} more" if found[1:] else ""
    return f"training of {found[0][0]} at {found[0][1]}{more}" if found else ""


def charts_of_run(log: RunLog, loss_unit: str = "nats") -> list[dict]:
    marks, on_rows = marks_of(log), validated_on(log.run)
    charts = [
        chart(
            "loss",
            "Loss",
            ", ".join(filter(None, [loss_unit, on_rows and f"validation {on_rows}", of_fewer_steps(log)])),
            trained_and_validated(log, "loss"),
            wide=True,
            marks=marks,
        ),
        *_parts_of_loss(log, loss_unit),
        *_validated(log, marks),
        *(_of_training(log, quantity) for quantity in OF_TRAINING),
        *_norms_of_layers(log),
        chart(
            "router_load",
            "Load of the experts",
            "tokens, of an equal share",
            [series(log.train, "router_load_max", "most used"), series(log.train, "router_load_min", "least used")],
            zero=True,
        ),
        *(_of_training(log, quantity) for quantity in OF_ROUTERS),
        *_others(log),
        by_position({"perplexity": [log.by_position]}),
    ]
    return [one for one in charts if one is not None]


def _of_training(log: RunLog, quantity: Quantity) -> dict | None:
    values = series(log.train, quantity.key, quantity.title.lower(), noisy=quantity.noisy)
    return chart(quantity.key, quantity.title, quantity.unit, [values], kind=quantity.kind, zero=quantity.zero)


def _keys(lines: list[dict]) -> list[str]:
    return list(dict.fromkeys(key for line in lines for key, value in line.items() if is_number(value)))


def _words(key: str) -> str:
    return key.replace("_", " ")


def trained_and_validated(log: RunLog, key: str) -> list[dict | None]:
    """The curves of a loss in training and in the validations."""
    return [
        series(log.train, key, "training", noisy=True, of="training"),
        series(log.validations, f"validation_{key}", "validation", points=True, of="validation"),
    ]


def _parts_of_loss(log: RunLog, unit: str) -> list[dict | None]:
    charts = []
    for key in parts_in(log):
        name = _words(key.removeprefix("loss_").removesuffix("_loss"))
        charts.append(chart(key, f"Loss of {name}", unit, trained_and_validated(log, key)))
    return charts


def _validated(log: RunLog, marks: list[dict]) -> list[dict | None]:
    """Metrics of the validations: shares together in one chart, each other metric in its own."""
    names = [key for key in _keys(log.validations) if is_metric(key) and not is_part_of_loss(key.partition("_")[2])]
    series_of = {
        name: series(log.validations, name, _words(name.partition("_")[2]), points=True)
        for name in names
        if name != "validation_loss"
    }
    present = {name: one for name, one in series_of.items() if one is not None}
    pairs, on_rows = f"validation_{MINIMAL_PAIRS}", validated_on(log.run)  # pairs are not rows of the validation data
    shares = [one for name, one in present.items() if name != pairs and min(one["y"]) >= -1 and max(one["y"]) <= 1]
    together = chart("shares", "Validation", on_rows, shares[:8], marks=marks) if shares else None
    if together is not None and len(shares) == 1:
        together["title"] = f"Validation {shares[0]['name']}"
    rest = [
        chart(name, f"Validation {_words(name.partition('_')[2])}", "" if name == pairs else on_rows, [one])
        for name, one in present.items()
        if one not in shares
    ]
    return [together, *rest]


def _others(log: RunLog) -> list[dict | None]:
    """Charts of what an objective itself measures during training, such as the accuracy of a second head."""
    return [
        chart(name, f"Training {_words(name)}", "", [series(log.train, name, _words(name), noisy=True)])
        for name in _keys(log.train)
        if not (name in KNOWN or is_part_of_loss(name) or name.startswith("router_"))
    ]


# ---------------------------------------------------------------------------------------------------- other axes


def layers_of(line: dict) -> dict[str, dict[int, float]]:
    """{stack: {number of a layer, from 1: the norm of its gradient}} of a line of gradients.jsonl."""
    stacks: dict[str, dict[int, float]] = {}
    for name, norm in line["layers"].items():
        stack, _, number = name.rpartition(".")
        if number.isdecimal() and is_number(norm) and norm - norm == 0:
            stacks.setdefault(stack, {})[int(number) + 1] = norm
    return stacks


def _lines_of_layers(log: RunLog) -> list[dict]:
    return [line for line in log.gradients if isinstance(line.get("layers"), dict)]


def _norms_of_layers(log: RunLog) -> list[dict | None]:
    """The gradient norms from the first layer to the last, at a few steps of the run."""
    lines = _lines_of_layers(log)
    chosen = sorted({0, len(lines) // 4, len(lines) // 2, len(lines) - 1}) if lines else ()
    return _norms_charts({f"step {lines[place]['step']:,}": [lines[place]] for place in chosen})


def _norms_of_runs(variants: dict[str, list[RunLog]]) -> list[dict | None]:
    """The same of several variants, one series each: at the first and at the last logged step."""
    lines_of = {name: [lines for log in logs if (lines := _lines_of_layers(log))] for name, logs in variants.items()}
    charts = []
    for place, when in ((0, ", first step logged"), (-1, ", last step logged")):
        charts += _norms_charts({name: [lines[place] for lines in of_runs] for name, of_runs in lines_of.items()}, when)
    return charts


def _norms_charts(lines_of: dict[str, list[dict]], when: str = "") -> list[dict | None]:
    """A chart for each stack of layers. lines_of: {name of a series: lines of gradients.jsonl, whose mean it is}."""
    stacks = layers_of(next((line for lines in lines_of.values() for line in lines), {"layers": {}}))
    charts = []
    for stack in stacks:
        where, part = (f" of {stack}", f"-{stack.replace('.', '-')}") if len(stacks) > 1 else ("", "")
        norms = [[layers_of(line).get(stack, {}) for line in lines] for lines in lines_of.values()]
        rows = [curve(one, name, number, points=True) for number, (name, one) in enumerate(zip(lines_of, norms))]
        name = f"grad_norm_by_layer{part}{re.sub(r'[ ,]+', '_', when)}"
        more = {"across": "layer", "zero": True}
        charts.append(chart(name, f"Gradient norm by layer{where}{when}", "before clipping", rows, **more))
    return charts


def by_position(variants: dict[str, list[dict]]) -> dict | None:
    """The perplexity by the number of tokens before. variants: {name: the `--by-position` results of its runs}."""
    rows, trained = [], set()
    for number, (name, results) in enumerate(variants.items()):
        measured = [one for one in results if one.get("perplexity")]
        pairs = [zip(one["tokens_before"], one["perplexity"]) for one in measured]
        perplexities = [{x: y for x, y in points if y is not None} for points in pairs]  # null: of a diverged run
        rows.append(curve(perplexities, name, number, points=True))
        trained |= {one["trained_length"] for one in measured if one.get("trained_length")}
    marks = [{"x": length, "label": "trained length"} for length in sorted(trained)]
    more = {"across": "tokens before the predicted one", "marks": marks, "wide": True}
    return chart("by_position", "Perplexity by position", "", rows, **more)


# ---------------------------------------------------------------------------------------------------- several runs


def charts_of_runs(variants: dict[str, list[RunLog]], loss_unit: str = "nats") -> list[dict]:
    """A chart for each quantity, with a series for each variant that has it: of its run, or the mean of its seeds."""
    charts, all_logs = [], [log for logs in variants.values() for log in logs]

    def add(key: str, title: str, unit: str, lines, noisy=False, points=False, **more):
        rows = [
            curve([values_of(lines(log), key) for log in logs], name, number, noisy=noisy, points=points)
            for number, (name, logs) in enumerate(variants.items())
        ]
        charts.append(chart(key, title, unit, rows, **more))

    add("loss", "Training loss", loss_unit, lambda log: log.train, noisy=True, wide=True)
    metrics = list(dict.fromkeys(key for log in all_logs for key in _keys(log.validations) if is_metric(key)))
    for key in sorted(metrics, key=lambda key: key != "validation_loss"):
        is_loss = is_part_of_loss(f"_{key}") or key == "validation_loss"
        add(key, f"V{_words(key)[1:]}", loss_unit if is_loss else "", lambda log: log.validations, points=True)
    for key in dict.fromkeys(key for log in all_logs for key in parts_in(log)):
        add(key, f"Training, {_words(key)}", loss_unit, lambda log: log.train, noisy=True)
    for one in (*OF_TRAINING, *OF_ROUTERS):
        add(one.key, one.title, one.unit, lambda log: log.train, noisy=one.noisy, kind=one.kind, zero=one.zero)
    charts += _norms_of_runs(variants)
    charts.append(by_position({name: [log.by_position for log in logs] for name, logs in variants.items()}))
    return [one for one in charts if one is not None]


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric are better; a part of the loss counts as a metric."""
    return is_part_of_loss(metric) or less_is_better(metric)
