"""Measure rows of RESULTS.md again, and write them there.

    python scripts/results/measure.py --list             # the rows, and when each was measured
    python scripts/results/measure.py e "trec_tuned"     # a letter, or a row's first cell

The commands of a row are run one after another in this folder, which has data/ and models/; of a finished run they
print the result. What was measured is kept, too, in measured.json beside this file: commands, figures,
seeds, commit, versions, machine, minutes.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from anyformer.pipelines.reporting.interpret import Measured, measured
from anyformer.pipelines.reporting.run_log import read_run
from anyformer.pipelines.storage.atomic import write_atomically
from checkout import commit
from results_table import FILE, Row, rows_of

KEPT = Path(__file__).with_name("measured.json")
# metric -> how RESULTS.md writes it, and the factor and decimal places of its value.
WRITTEN = {
    "accuracy": ("{} %", 100, 1),
    "minimal_pairs_accuracy": ("BLiMP {} %", 100, 1),
    "exact_match": ("{} % exact", 100, 1),
    "entity_f1": ("F1 {}", 100, 1),
    "spearman": ("{}", 100, 1),
    "bleu": ("{} BLEU", 1, 2),
    "word_perplexity": ("word perplexity {}", 1, 1),
    "perplexity": ("perplexity {}", 1, 1),
    "loss": ("loss {}", 1, 3),
}


def folders_of(command: str) -> list[Path]:
    """The folders of the runs that a command trains or measures, as the command line itself composes its recipe."""
    words = shlex.split(command)
    if words[1] == "evaluate":
        return [Path(words[2])]
    if "--seeds" in words:
        place = words.index("--seeds")
        words = words[:place] + words[place + 2 :]
    printed = subprocess.run([*words, "--print-recipe"], check=True, capture_output=True, text=True).stdout
    folder = Path(re.search(r"^  output_dir: (.+?)(?: +#.*)?$", printed, re.MULTILINE)[1])
    return sorted(folder.glob("seed-*")) if "--seeds" in command else [folder]


def measured_by(command: str, folder: Path) -> dict[str, Measured]:
    """{split_metric: its value} of a run, or of what `anyformer evaluate` kept of a model."""
    if " evaluate " not in command:
        return {f"{one.split}_{one.metric}": one for one in measured(read_run(folder))}
    task = shlex.split(command)[3]
    kept = json.loads((folder / f"evaluation-{task}.json").read_text(encoding="utf-8"))
    bounds = {name: (each["low"], each["high"]) for name, each in kept["intervals"].items()}
    return {f"test_{name}": Measured("test", name, one, *bounds.get(name, ())) for name, one in kept["metrics"].items()}


def figure_of(runs: list[dict[str, Measured]], metric: str | None) -> str:
    """A metric of runs of several seeds as mean ± deviation, of one run with its interval: of test data, if any."""
    names = [f"{split}_{name}" for name in ([metric] if metric else WRITTEN) for split in ("test", "validation")]
    chosen = next(runs[0][name] for name in names if name in runs[0])
    written, factor, digits = WRITTEN.get(chosen.metric, (f"{chosen.metric.replace('_', ' ')} {{}}", 1, 3))
    values = [run[f"{chosen.split}_{chosen.metric}"].value * factor for run in runs]
    if len(values) > 1:
        return written.format(f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}")
    bounds = "" if chosen.low is None else f" ({chosen.low * factor:.{digits}f}-{chosen.high * factor:.{digits}f})"
    of = "validation " if chosen.split == "validation" else ""
    return of + written.format(f"{values[0]:.{digits}f}") + bounds


def measure(row: Row, metric: str | None) -> Row:
    """Run a row's commands, keep what they measured, and return the row with it."""
    for command in row.commands:
        print(command, flush=True)
        subprocess.run(shlex.split(command), check=True)
    folders = folders_of(row.commands[-1])
    logs = [read_run(folder) for folder in folders]
    runs = [measured_by(row.commands[-1], folder) for folder in folders]
    result = figure_of(runs, metric)
    seconds = [log.run["wall_seconds"] for log in logs]
    facts = {
        "result": result,
        "commands": row.commands,
        "seeds": [log.run["seed"] for log in logs],
        "metrics": [{name: one.value for name, one in run.items()} for run in runs],
        "commit": commit(),
        "versions": logs[0].run["versions"],
        "machine": logs[0].run["hardware"],
        "minutes": [round(each / 60, 1) for each in seconds],
        "date": time.strftime("%Y-%m-%d"),
    }
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept[row.cells[0]] = facts
    write_atomically(KEPT, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    taken = f"{statistics.mean(seconds) / 60:.0f} min{' a seed' if len(seconds) > 1 else ''}"
    dtype = ", bf16" if logs[0].section("training").get("bf16") else ""
    return row.with_figure(result, f"{facts['date']} {facts['commit']}{dtype}, {taken}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="letters or first cells of rows")
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--metric", help="the metric to write, where a row shows another than the first that is known")
    options = parser.parse_args()
    rows = rows_of(FILE.read_text(encoding="utf-8"))
    if options.list:
        print("\n".join(f"{row.cells[-1]:46}{'; '.join(sorted(row.names, key=len))}" for row in rows))
        return
    named = {name: row for row in rows for name in row.names}
    unknown = [name for name in options.rows if name not in named]
    if unknown or not options.rows:
        parser.error(f"{', '.join(unknown) or 'no row'} is not a row of RESULTS.md; --list names them")
    for name in options.rows:
        again = measure(named[name], options.metric)
        text = FILE.read_text(encoding="utf-8")
        write_atomically(FILE, text.replace(named[name].line(), again.line()))
        print(again.line(), flush=True)


if __name__ == "__main__":
    main()
