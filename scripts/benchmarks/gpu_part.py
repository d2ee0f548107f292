"""One part of gpu.py in a process of its own: imports first, then waits for a line on standard input, then runs.

Rows go to a file of JSON lines, each as soon as it is measured.
"""

import argparse
import json
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo

import anyformer  # noqa: F401  (imported while another part still runs)


@dataclass
class Setup:
    """device: "cuda" or "cpu". tiny: sizes for a test of the command itself. path: of the rows; None keeps them."""

    device: str
    tiny: bool
    path: Path | None = None
    part: str = ""

    def __post_init__(self):
        self.rows = []
        self.raises = ()  # exceptions that `attempt` does not keep: where a card is full, less is tried

    def write(self, **row) -> None:
        self.rows.append(row)
        if self.path is not None:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def check(self, what: str, ok, detail: str = "") -> None:
        """A row: whether what is claimed holds."""
        self.write(part=self.part, what=what, result="ok" if ok else "failed", detail=detail)

    def absent(self, what: str, why: str) -> None:
        self.write(part=self.part, what=what, result="not installed", detail=first_line(why))

    def attempt(self, what: str, function, *args) -> object:
        """function(*args); where it raises, a row says so, the log holds the traceback, and the part goes on.

        "not installed" where a package or a kernel is missing.
        """
        try:
            return function(*args)
        except ImportError as error:
            self.absent(what, str(error))
        except Exception as error:
            if isinstance(error, self.raises):
                raise
            traceback.print_exc()
            self.check(what, False, f"{type(error).__name__}: {first_line(error)}")
        return None

    def timed(self, what: str, arm: str, **numbers) -> None:
        self.write(part=self.part, what=what, arm=arm, **numbers)


def first_line(error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"


def main(argv=None) -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("part")
    p.add_argument("path", type=Path)
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true")
    args = p.parse_args(argv)
    import gpu_checks
    import gpu_checks_runtime
    import gpu_speed
    import method

    sys.stdin.readline()
    began = time.monotonic()
    setup = Setup(args.device, args.tiny, args.path, args.part)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --device cpu --tiny tests the command itself")
    setup.write(part=args.part, header=method.machine())
    if args.device == "cpu":
        torch.set_num_threads(1)  # tiny tensors; threads would only wait for each other
    torch.manual_seed(0)
    # One compiled flex_attention serves a process; past 8 variants of its arguments it would run without its kernel.
    torch._dynamo.config.recompile_limit = 64
    for module in (gpu_checks, gpu_checks_runtime, gpu_speed):
        if hasattr(module, args.part):
            getattr(module, args.part)(setup)
    print(f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
