"""The command line: one verb, one library function."""

from .commands import main

__all__ = ["main"]
