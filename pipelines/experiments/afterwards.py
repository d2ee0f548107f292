"""What a sweep measures of its finished runs in the end: perplexities by position, one plot of all."""

import json
from collections.abc import Callable
from pathlib import Path

from ..reporting.plots import plot_perplexity_by_position
from ..reporting.run_log import BY_POSITION_FILE, read_run
from .workers import Command, run_commands

PLOT = "by-position.png"


def measure_by_position(
    runs: dict[str, Path],
    length: int,
    max_examples: int | None,
    plot: Path,
    entry: Callable[[list[str]], int],
    at_once: int,
    plugins: list[str],
    say: Callable[[str], None],
) -> int:
    """Measure what is not known yet of each run by `anyformer evaluate --by-position`, and draw one plot of all.

    runs: {label: folder of a finished run}. plugins: words of the command line that name plug-ins. Returns 0, or 128 +
    n where signal n stopped it. A run that cannot read such rows, such as one with learned positions, is said.
    """
    commands = []
    for label, folder in runs.items():
        known = read_run(folder).by_position
        same = (known.get("recipe") or {}).get("objective", {}).get("sequence_length") == length
        if not (same and known.get("label") == label and (max_examples is None or known["rows"] <= max_examples)):
            most = [] if max_examples is None else ["--max-examples", str(max_examples)]
            words = [*plugins, "evaluate", str(folder), f"objective.sequence_length={length}", "--by-position", *most]
            words += ["--label", label, "--output", str(folder / BY_POSITION_FILE)]
            commands.append(Command(words, folder.parent / f"{folder.name}.by-position.log"))

    def ended(command: Command, code: int) -> None:
        if code and code <= 128:
            say(f"{command.log}: {command.last_line()}")

    code = run_commands(iter(commands), at_once, entry, ended)
    files = [folder / BY_POSITION_FILE for folder in runs.values()]
    curves = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    curves = [one for one in curves if one["recipe"]["objective"]["sequence_length"] == length]
    if curves:
        plot_perplexity_by_position(curves, plot)
    return code
