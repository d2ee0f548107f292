"""The command line: one verb, one module, one library function."""

from .commands import main

__all__ = ["main"]
