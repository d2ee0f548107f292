"""What a sweep measures on its finished runs at its end: perplexities by position, for the page that compares them."""

from collections.abc import Callable
from pathlib import Path

from ..reporting.run_log import BY_POSITION_FILE, read_run
from ..storage.record import Record, code_identity, data_identity
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
        log = read_run(folder, shown=False)
        now, measurement = Record(data=data_identity(log.recipe), code=code_identity()), log.by_position
        has_length = (measurement.get("recipe") or {}).get("objective", {}).get("sequence_length") == length
        is_of = has_length and Record.of(measurement).differs_from(now) is None
        if not (is_of and measurement.get("max_examples", UNKNOWN) == max_examples):
            limit = [] if max_examples is None else ["--max-examples", str(max_examples)]
            words = [*plugins, "evaluate", str(folder), f"objective.sequence_length={length}", "--by-position", *limit]
            words += ["--output", str(folder / BY_POSITION_FILE)]
            commands.append(Command(words, folder.parent / f"{folder.name}.by-position.log"))

    def ended(command: Command, code: int) -> None:
        if code and code <= 128:
            say(f"{command.log}: {command.last_line()}")

    return run_commands(iter(commands), at_once, entry, ended)
