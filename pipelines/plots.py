"""Plots of runs, one function each, in a common style. They need matplotlib, which is an extra."""

import importlib.util
import math
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError
from .words import short_number

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


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def figure(path: Path, columns: int = 1, rows: int = 1, width: float = 4.2, height: float = 3.2):
    """Yield the axes of a new figure, as `subplots` returns them; at the end it is written to `path` (a PNG).

    Raises UserError where matplotlib is not installed.
    """
    if not can_plot():
        raise UserError(f"{Path(path).name} needs matplotlib; install it with: pip install anyformer[plots]")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(LOOK):
        # Not pyplot: it keeps references to figures and may need a display.
        picture = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(picture)
        yield picture.subplots(rows, columns)
        picture.savefig(path)


def plot_routers(entries: list[dict], path: Path) -> None:
    """Plot how evenly routers used their experts, from the lines of router.jsonl; written to `path`.

    Raises UserError where matplotlib is not installed.
    """
    steps = [entry["step"] for entry in entries]
    loads = [entry["load"] for entry in entries]  # (steps, layers, experts), shares
    layers, experts = len(loads[0]), len(loads[0][0])
    with figure(path, columns=3) as (over_time, certainty, last):
        for name, pick in (("most used", max), ("least used", min)):
            for layer in range(layers):
                color = f"C{0 if pick is max else 1}"
                label = f"{name} expert of each layer" if layer == 0 else None
                share = [pick(load[layer]) * experts for load in loads]
                over_time.plot(steps, share, color=color, alpha=max(0.3, 2 / (1 + layers)), label=label)
        over_time.axhline(1, color="0.5", linewidth=0.8)
        over_time.set(title="Load of experts over training", xlabel="step", ylabel="tokens, of an equal share")
        over_time.set_ylim(bottom=0)
        over_time.legend()
        for layer in range(layers):
            color = (0.2, 0.3 + 0.6 * layer / max(1, layers - 1), 0.6)
            values = [entry["entropy"][layer] / math.log(max(2, experts)) for entry in entries]
            shown = layers <= 6 or layer in (0, layers - 1)
            certainty.plot(steps, values, color=color, label=f"sparse layer {layer + 1}" if shown else None)
        certainty.set(title="Entropy of the routers' scores", xlabel="step", ylabel="of log(experts)", ylim=(0, 1.03))
        certainty.legend()
        relative = [[share * experts for share in row] for row in loads[-1]]
        image = last.imshow(relative, aspect="auto", vmin=0, vmax=max(2.0, *(max(row) for row in relative)))
        last.figure.colorbar(image, label="tokens, of an equal share")
        last.set(title=f"Load at step {steps[-1]}", xlabel="expert", ylabel="sparse layer")
        last.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)] if layers <= 16 else [""] * layers)
        last.grid(False)


def plot_perplexity_by_position(curves: list[dict], path: Path) -> None:
    """Plot perplexity against the number of tokens before, a line per result of `--by-position`; written to `path`.

    Raises UserError where matplotlib is not installed.
    """
    with figure(path, width=6.4, height=3.8) as axes:
        for curve in curves:
            axes.plot(curve["tokens_before"], curve["perplexity"], marker=".", markersize=4, label=curve["label"])
        for length in sorted({curve["trained_length"] for curve in curves if curve.get("trained_length")}):
            axes.axvline(length, color="0.6", linewidth=0.8, linestyle=":")
        axes.set(
            title="Perplexity by position (dotted: length of training)",
            xlabel="tokens before the predicted one",
            ylabel="perplexity",
            yscale="log",
            xlim=(0, None),
        )
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis("{x:g}")  # plain numbers: a plot rarely spans two powers of ten
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
                own = sorted((run for run in runs if run[across] == value), key=lambda run: run[along])
                color = (0.2, 0.25 + 0.6 * number / max(1, len(curves) - 1), 0.6)
                line = np.geomspace(min(run[along] for run in runs), max(run[along] for run in runs), 50)
                other = np.full_like(line, value)
                axes.plot(line, loss(line, other) if along == "parameters" else loss(other, line), color=color, lw=0.9)
                for fitted, marker in ((True, "o"), (False, "*")):
                    points = [run for run in own if run["fitted"] == fitted]
                    is_first = fitted or not any(run["fitted"] for run in own)
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
