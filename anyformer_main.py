"""Entry point of the command `anyformer`."""

import os
import signal
import sys
from contextlib import suppress


def main(argv: list[str] | None = None) -> int:
    """Run the `anyformer` command line and return its exit code (0 done, 2 user error)."""
    # After `>&-` the next file that is opened would get the descriptor of the output, and all that is printed.
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
    from anyformer.pipelines.cli.commands import main as run

    code = run(sys.argv[1:] if argv is None else argv)
    if code > 128:  # stopped by a signal: its echo (training/stop_signal.py) must not change how the process ends
        with suppress(OSError, ValueError):  # a child process may have got SIGKILL, which takes no handler
            signal.signal(code - 128, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
