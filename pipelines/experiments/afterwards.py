"""What a sweep measures of its finished runs in the end: perplexities by position, for the page that compares them."""

from collections.abc import Callable
from pathlib import Path

from ..reporting.run_log import BY_POSITION_FILE, read_run
from .workers import Command, run_commands


def measure_by_position(
    runs: list[Path],
    length: int,
    max_examples: int | None,
    entry: Callable[[list[str]], int],
    at_once: int,
    plugins: list[str],
    say: Callable[[str], None],
) -> int:
    """Measure what is not known yet of each finished run by `anyformer evaluate --by-position`.

    plugins: words of the command line that name plug-ins. Returns 0, or 128 + n where signal n stopped it. A run that
    cannot read such rows, such as one with learned positions, is said.
    """
    commands = []
    for folder in runs:
        known = read_run(folder).by_position
        same = (known.get("recipe") or {}).get("objective", {}).get("sequence_length") == length
        if not (same and (max_examples is None or known["rows"] <= max_examples)):
            most = [] if max_examples is None else ["--max-examples", str(max_examples)]
            words = [*plugins, "evaluate", str(folder), f"objective.sequence_length={length}", "--by-position", *most]
            words += ["--output", str(folder / BY_POSITION_FILE)]
            commands.append(Command(words, folder.parent / f"{folder.name}.by-position.log"))

    def ended(command: Command, code: int) -> None:
        if code and code <= 128:
            say(f"{command.log}: {command.last_line()}")

    return run_commands(iter(commands), at_once, entry, ended)
