"""What a sweep measures on its finished runs at its end: perplexities by position, for the page that compares them."""

from collections.abc import Callable
from pathlib import Path

from ..reporting.run_log import BY_POSITION_FILE, read_run
from .workers import Command, run_commands

UNKNOWN = -1  # the limit on rows of a file that does not say it


def measure_by_position(
    runs: list[Path],
    length: int,
    max_examples: int | None,
    entry: Callable[[list[str]], int],
    at_once: int,
    plugins: list[str],
    say: Callable[[str], None],
) -> int:
    """Run `anyformer evaluate --by-position` on each finished run that has not been measured so yet.

    plugins: words of the command line that name plug-ins. Returns 0, or 128 + n if signal n stopped it. `say` reports a
    run that cannot read rows of this length, such as one with learned positions.
    """
    commands = []
    for folder in runs:
        measurement = read_run(folder).by_position
        has_length = (measurement.get("recipe") or {}).get("objective", {}).get("sequence_length") == length
        if not (has_length and measurement.get("max_examples", UNKNOWN) == max_examples):
            limit = [] if max_examples is None else ["--max-examples", str(max_examples)]
            words = [*plugins, "evaluate", str(folder), f"objective.sequence_length={length}", "--by-position", *limit]
            words += ["--output", str(folder / BY_POSITION_FILE)]
            commands.append(Command(words, folder.parent / f"{folder.name}.by-position.log"))

    def ended(command: Command, code: int) -> None:
        if code and code <= 128:
            say(f"{command.log}: {command.last_line()}")

    return run_commands(iter(commands), at_once, entry, ended)
