"""The curves of runs as files: PNG for cards and slides, SVG for documents."""

from functools import partial
from itertools import product
from pathlib import Path

from ..errors import UserError
from ..publishing.model_card import CURVE
from ..publishing.run_facts import objective_facts
from .charts import charts_of_run, charts_of_runs
from .class_section import MOST_DRAWN, classes_of
from .plots import figure
from .run_log import RunLog, read_run

KINDS = ("png", "svg")
# The page's colours on white (report.css), which colour-blind people can tell apart.
COLORS = ("#0068b8", "#b84a00", "#00734f", "#a03c82", "#7d6200", "#00788c", "#6e4f9e", "#57606a")


def draw_loss(folder: Path) -> bool:
    """Draw the losses of a run into its folder, for its model card; returns whether there are any.

    Raises UserError where matplotlib is not installed.
    """
    log = read_run(folder)
    charts = [one for one in charts_of_run(log, objective_facts(log.recipe).words.loss) if one["id"] == "loss"]
    for one in charts:
        draw(one, [log.name], folder / CURVE, width=6.4, height=3.2)
    return bool(charts)


def draw_figures(variants: dict[str, list[RunLog]], folder: Path) -> list[Path]:
    """Draw each chart of a run, or of several variants (comparison.py), as PNG and SVG; returns the files.

    Of a run with classes also their scores and confusions.

    Raises UserError where matplotlib is not installed, or the runs have logged nothing yet.
    """
    logs = [log for runs in variants.values() for log in runs]
    unit = objective_facts(logs[0].recipe).words.loss
    charts = charts_of_run(logs[0], unit) if len(logs) == 1 else charts_of_runs(variants, unit)
    if not charts:
        raise UserError(f"RUN={logs[0].folder} has logged nothing yet, so there are no figures; train it first")
    folder.mkdir(parents=True, exist_ok=True)
    figures = {one["id"]: partial(draw, one, [*variants]) for one in charts}
    for report in classes_of(logs[0]) if len(logs) == 1 else ():
        if report.get("classes"):
            figures[f"classes-{report['split']}"] = partial(draw_classes, report)
        if "picture" in report:
            figures[f"confusion-{report['split']}"] = partial(draw_confusion, report)
    files = {folder / f"{name}.{kind}": drawn for name, drawn in figures.items() for kind in KINDS}
    for path, drawn in files.items():
        drawn(path)
    return [*files]


def draw_classes(report: dict, path: Path) -> None:
    """Draw precision, recall and F1 of each class as bars; report: as classes_of makes it."""
    classes = report["classes"][:MOST_DRAWN]
    with figure(path, width=6.4, height=1.2 + 0.5 * len(classes)) as axes:
        for place, (name, color) in enumerate(zip(("precision", "recall", "f1"), COLORS)):
            at = [number + 0.27 * (place - 1) for number in range(len(classes))]
            axes.barh(at, [one[name] for one in classes], 0.25, color=color, label=name)
        axes.set_yticks(range(len(classes)), [f"{one['name']} ({one['support']:,})" for one in classes])
        axes.set(title=f"Classes, {report['split']}", xlim=(0, 1))
        axes.invert_yaxis()
        axes.figure.legend(loc="outside lower center", ncols=3)


def draw_confusion(report: dict, path: Path) -> None:
    """Draw which classes were taken for which, as shares of each row; report: as classes_of makes it."""
    picture, places = report["picture"], range(len(report["picture"]["names"]))
    size = 1.8 + max(0.4 if picture["numbers"] else 0.16, 1.6 / len(places)) * len(places)
    with figure(path, width=size, height=size) as axes:
        cells = [cells for *_, cells in picture["rows"]]
        axes.imshow([[share for _, share, *_ in row] for row in cells], cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(places, picture["names"], rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, picture["names"])
        axes.set(title=f"What is taken for what, {report['split']}", xlabel="was taken for", ylabel="is")
        axes.grid(False)
        for row, column in product(places, places) if picture["numbers"] else ():
            number, share, *_ = cells[row][column]
            color = "white" if share > 0.5 else "black"
            axes.text(column, row, f"{number:,}" if number else "", ha="center", va="center", color=color)


def smoothed(values: list[float]) -> list[float]:
    """The mean of the values around each one, as in charts.js, over fewer of them at the beginning."""
    half, count, means = max(1, round(len(values) / 60)), len(values), []
    for place in range(count):
        near = values[place - min(place, half) : min(count, place + 1 + min(place, half))]
        means.append(sum(near) / len(near))
    return means


def draw(chart: dict, runs: list[str], path: Path, width: float = 5.4, height: float = 3.2) -> None:
    """Draw one chart (charts.py) into a file, whose suffix says its format."""
    with figure(path, width=width, height=height) as axes:
        for number, one in enumerate(chart["series"]):
            color = COLORS[(one["run"] if len(runs) > 1 else number) % len(COLORS)]
            values = one["y"]
            if "low" in one:
                axes.fill_between(one["x"], one["low"], one["high"], color=color, alpha=0.2, linewidth=0)
            if one.get("noisy") and len(values) > 40:
                axes.plot(one["x"], values, color=color, alpha=0.25, linewidth=0 if "low" in one else 0.7)
                values = smoothed(values)
            marker = "o" if (one.get("points") and len(values) <= 60) or len(values) == 1 else None
            axes.plot(one["x"], values, color=color, linewidth=1.6, marker=marker, markersize=3.5, label=one["name"])
        for mark in chart["marks"]:
            axes.axvline(mark["x"], color="0.6", linewidth=0.8, linestyle=":")
        axes.set(title=chart["title"], xlabel=chart.get("across", "step"), ylabel=chart["unit"])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        if chart.get("zero"):
            axes.set_ylim(
                bottom=min(0, axes.get_ylim()[0]) if min(map(min, (s["y"] for s in chart["series"]))) < 0 else 0
            )
        if chart["kind"] == "percent":
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if len(chart["series"]) > 1:
            axes.legend()
