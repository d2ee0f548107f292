"""Plots of runs, one function each, in a common style. They need matplotlib, which is an extra."""

import importlib.util
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError, need_package
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..storage.atomic import replaced_file
from ..words import short_number

LOOK = {
    "figure.dpi": 120,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.9",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "image.cmap": "viridis",
}


MOST_NAMED = 60  # tokens beside a map


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_by_position(asked_by: str, recipe: Recipe) -> None:
    """Raise UserError, beginning with `asked_by`, where perplexity by position cannot be measured or plotted."""
    objective = objective_of(recipe)
    if not objective.predicts_each_position:
        raise UserError(f"{asked_by} measures next-token predictions, and {objective.setting} makes none; leave it out")
    need_package(asked_by, "matplotlib", "plots")


@contextmanager
def figure(path: Path, columns: int = 1, width: float = 4.2, height: float = 3.2):
    """Yield the axes of a new figure, as `subplots` returns them; at the end it is written to `path` (PNG or SVG).

    Raises UserError where matplotlib is not installed.
    """
    need_package(Path(path).name, "matplotlib", "plots")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(LOOK):
        # Not pyplot: it keeps references to figures and may need a display.
        picture = Figure(figsize=(width * columns, height), layout="constrained")
        FigureCanvasAgg(picture)
        yield picture.subplots(1, columns)
        with replaced_file(path) as temporary:
            picture.savefig(temporary, format=path.suffix[1:])


def plot_attention(weights, queries: list[str], keys: list[str], title: str, path: Path) -> None:
    """Plot a head's shares (T, S) on their own scale, up to the largest one; written to `path`.

    Raises UserError where matplotlib is not installed.
    """
    width, height = (1.6 + 0.22 * min(len(words), MOST_NAMED) for words in (keys, queries))
    with figure(path, width=max(4, width + 1), height=max(3, height)) as axes:
        picture = axes.imshow(weights.numpy(), vmin=0, cmap="Blues", aspect="auto")
        axes.figure.colorbar(picture, format=lambda share, _: f"{share:.0%}")
        axes.set(title=f"{title}: rows look at columns")
        axes.grid(False)
        if max(len(keys), len(queries)) <= MOST_NAMED:
            axes.set_xticks(range(len(keys)), keys, rotation=90, parse_math=False)
            axes.set_yticks(range(len(queries)), queries, parse_math=False)


def plot_shots(shots: dict[int, dict], path: Path) -> None:
    """Plot the metrics of a few-shot result against the number of solved examples, with their 95 % intervals.

    shots: those of evaluate_few_shot's result. Raises UserError where matplotlib is not installed.
    """
    with figure(path, width=6.4, height=3.8) as axes:
        for name in next(iter(shots.values()))["metrics"]:
            (line,) = axes.plot([*shots], [row["metrics"][name] for row in shots.values()], marker=".", label=name)
            bounds = [row["intervals"].get(name) for row in shots.values()]
            if all(bounds):
                between = [each["low"] for each in bounds], [each["high"] for each in bounds]
                axes.fill_between([*shots], *between, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(title="Answers after solved examples", xlabel="solved examples in the prompt", xticks=[*shots])
        axes.legend()


def plot_scaling(result: dict, loss, path: Path) -> None:
    """Plot the runs of a ladder and the law fitted to them, against parameters and tokens; written to `path`.

    result: of experiments/scaling.py. loss: (parameters, tokens) -> the law's loss. Raises UserError where matplotlib
    is not installed.
    """
    import numpy as np

    runs = result["runs"]
    with figure(path, columns=2) as panels:
        for axes, along, across in zip(panels, ("parameters", "tokens"), ("tokens", "parameters")):
            curves = sorted({run[across] for run in runs})
            for number, value in enumerate(curves):
                on_curve = sorted((run for run in runs if run[across] == value), key=lambda run: run[along])
                color = (0.2, 0.25 + 0.6 * number / max(1, len(curves) - 1), 0.6)
                line = np.geomspace(min(run[along] for run in runs), max(run[along] for run in runs), 50)
                other = np.full_like(line, value)
                axes.plot(line, loss(line, other) if along == "parameters" else loss(other, line), color=color, lw=0.9)
                for fitted, marker in ((True, "o"), (False, "*")):
                    points = [run for run in on_curve if run["fitted"] == fitted]
                    is_first = fitted or not any(run["fitted"] for run in on_curve)
                    label = f"{short_number(value)} {across}" if is_first else None
                    if points:
                        place = [run[along] for run in points], [run["loss"] for run in points]
                        size = 4 if fitted else 9
                        axes.plot(*place, marker, color=color, markersize=size, linestyle="none", label=label)
            axes.set(xlabel=along, ylabel="validation loss, nats per token", xscale="log", yscale="log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            trained = sorted({run[along] for run in runs})
            axes.set_xticks(trained, [short_number(value) for value in trained])
            axes.set_xticks([], minor=True)
            axes.legend(fontsize=7)
        panels[0].set_title("Runs and the fitted law")
        panels[1].set_title("Stars: the held-out size, not fitted")
