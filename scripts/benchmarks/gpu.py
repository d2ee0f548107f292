"""What a GPU shows in ten minutes, as one table: equal results, packed rows, compiled layers, generation, MFU, memory.

    python scripts/benchmarks/gpu.py FOLDER [--only PART ...]     FOLDER gets gpu.md and a log of each part
    python scripts/benchmarks/gpu.py FOLDER --device cpu --tiny   the same parts on a CPU at tiny sizes

The parts are functions in gpu_parts.py. Each is a process of its own with a time limit, so that a crash or a hang costs
its other rows and not the run. Needs torch, transformers and accelerate; nothing is installed: the repository's own
folders are made importable.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compare_losses import ROOT, link_package

HERE = Path(__file__).resolve().parent
# Seconds of each part, its imports among them.
PARTS = {"parity": 80, "syncs": 40, "packed": 80, "compiled": 90, "generate": 60, "125m": 70, "350m": 70, "1b": 110}
TINY_LIMIT = 900  # seconds of a part on a CPU
HEADER = "| part | what | result | detail |\n|---|---|---|---|\n"


def run_part(name: str, device: str, tiny: bool) -> None:
    """Print the rows of one part."""
    import gpu_parts
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --device cpu --tiny tests the command itself")
    if device == "cpu":
        torch.set_num_threads(1)
    report = gpu_parts.Report(name, device, tiny, PARTS[name])
    if name in gpu_parts.MODELS:
        gpu_parts.trained(report)
    else:
        getattr(gpu_parts, name)(report)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("output", type=Path, help="folder of the results")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--tiny", action="store_true", help="sizes for a test of this command")
    p.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    p.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # for the command's own processes
    args = p.parse_args(argv)
    if args.part:
        run_part(args.part, args.device, args.tiny)
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    report = args.output / "gpu.md"
    report.write_text(HEADER)
    with tempfile.TemporaryDirectory() as links:
        link_package(ROOT, Path(links))
        paths = [links, str(HERE), str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        for name in args.only or PARTS:
            command = [sys.executable, __file__, str(args.output), "--part", name, "--device", args.device]
            limit = TINY_LIMIT if args.tiny else PARTS[name]
            with report.open("a") as rows, (args.output / f"{name}.log").open("w") as log:
                try:
                    done = subprocess.run(
                        command + ["--tiny"] * args.tiny, env=environment, stdout=rows, stderr=log, timeout=limit
                    )
                    ended = f"exit code {done.returncode}" if done.returncode else ""
                except subprocess.TimeoutExpired:
                    ended = f"no end within {limit} s"
                if ended:
                    rows.write(f"| {name} | the whole part | failed | {ended}, see {name}.log |\n")
    text = report.read_text()
    print(text)
    return 1 if "| failed |" in text else 0


if __name__ == "__main__":
    sys.exit(main())
