"""The console that tables are printed on, the table of what was measured, and aligned facts."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..words import aligned

PIPE_WIDTH = 220  # characters; a pipe has no width


def wide_console(**how: Any) -> Console:
    """A console as wide as the terminal; in a pipe it is so wide that no row is broken and grep finds whole lines.

    how: as for rich's Console.
    """
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, **how)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: slice = slice(1, None)
) -> Console:
    """Print a line and a table below it; returns the console, for further output.

    numbers: the columns that are aligned to the right.
    """
    console = wide_console(soft_wrap=True)
    table = Table(*(Column(Text(name)) for name in columns), show_edge=False)
    for column in table.columns[numbers]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(title, markup=False)
    console.print(table)
    return console


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print labels and texts, wrapped at words on a terminal; in a pipe each is one line, for grep."""
    console.print(aligned(facts, console.width if console.is_terminal else None), markup=False, soft_wrap=True)
