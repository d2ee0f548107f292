"""Several runs side by side: what their final metrics are on average, and how far they lie apart."""

import statistics

from rich.table import Table

from ...words import short_metric, with_deviation


def compared(runs: dict[str, dict[str, float]]) -> dict[str, dict]:
    """{metric: {"mean", "deviation", "values": {run: value}}} of the metrics that all runs have.

    deviation: the standard deviation of a sample (divided by n - 1); None of a single run.
    """
    found = {}
    for name in next(iter(runs.values())):
        if all(metrics.get(name) is not None for metrics in runs.values()):
            values = {run: metrics[name] for run, metrics in runs.items()}
            spread = statistics.stdev(values.values()) if len(values) > 1 else None
            found[name] = {"mean": statistics.fmean(values.values()), "deviation": spread, "values": values}
    return found


def comparing_table(runs: dict[str, dict[str, float]]) -> Table:
    """A row for each metric: its value in each run, and mean ± standard deviation."""
    table = Table("metric", *runs, "mean ± deviation", title=None, show_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in compared(runs).items():
        values = [short_metric(value) for value in row["values"].values()]
        table.add_row(name.replace("_", " "), *values, with_deviation(row["mean"], row["deviation"]))
    return table
