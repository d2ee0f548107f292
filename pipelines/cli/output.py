"""Output that commands share: JSON for scripts; tables, notes and the next command for people."""

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from ..errors import UserError
from ..plugins import with_plugins


@contextmanager
def json_alone(asked: bool) -> Iterator[list]:
    """Collect a value in the list, and print it as JSON at the end if `asked`.

    In that case all that the block prints goes to standard error, so that standard output is only the value.
    """
    values: list[Any] = []
    if not asked:
        yield values
        return
    with redirect_stdout(sys.stderr):
        yield values
    if values:
        print_json(values[-1])


def print_json(value: Any) -> None:
    from ..storage.json_text import json_text

    print(json_text(value))


def refuse_json(args, option: str) -> None:
    """Raise UserError for --json beside an option whose result is no JSON."""
    if args.json:
        raise UserError(f"{option} prints no JSON; leave out --json")


def plain_table(columns: Sequence[str], left: Collection[str]):
    """A table of rich without lines; columns that are not in `left` are aligned to the right."""
    from rich.table import Table

    table = Table(show_edge=False, box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def say_loading() -> None:
    """Say on a terminal why nothing happens for some seconds."""
    if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
        print("loading torch and transformers ...", file=sys.stderr, flush=True)


def say_next(command: str) -> None:
    """Say on a terminal what to do next; in a pipe nothing is said."""
    if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
        print(f"next: {with_plugins(command)}", file=sys.stderr)


def quoted(path: Any) -> str:
    """A path quoted for a shell."""
    return shlex.quote(str(path))
