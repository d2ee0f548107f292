"""The console that tables are printed on."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 220  # a pipe has none


def wide_console(**how: Any) -> "Console":
    """A console as wide as the terminal; in a pipe no row of ours is broken, so that grep finds whole lines.

    how: as for rich's Console.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, **how)
