"""The curves of runs as files: PNG for cards and slides, SVG for documents."""

from pathlib import Path

from ..errors import UserError
from ..publishing.model_card import CURVE
from ..publishing.objective_facts import objective_facts
from .charts import charts_of_run, charts_of_runs
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

    Raises UserError where matplotlib is not installed, or the runs have logged nothing yet.
    """
    logs = [log for runs in variants.values() for log in runs]
    unit = objective_facts(logs[0].recipe).words.loss
    charts = charts_of_run(logs[0], unit) if len(logs) == 1 else charts_of_runs(variants, unit)
    if not charts:
        raise UserError(f"RUN={logs[0].folder} has logged nothing yet, so there are no figures; train it first")
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{one['id']}.{kind}" for one in charts for kind in KINDS]
    for one in charts:
        for kind in KINDS:
            draw(one, [*variants], folder / f"{one['id']}.{kind}")
    return files


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
