"""Seconds from the command `anyformer train quickstart` to its first optimizer step, data and tokenizer from the cache.

Wall time, so on a machine that does nothing else. "libraries" is a process that imports what any training with
transformers' Trainer imports, and does nothing: nobody starts sooner. --before COMMIT: the same by an earlier commit of
this repository. Rounds run the arms by turns, after one of each that fills caches.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import method
import numpy as np
from compare_losses import checkout, link_package

LIBRARIES = "import torch, datasets, accelerate; from transformers import AutoTokenizer, Trainer, TrainingArguments"
SETTINGS = ("training.logging_steps=1", "evaluation.every_steps=null", "training.warmup_steps=0")
LONGEST = 600.0  # seconds to wait for a first step


def seconds_to_import(folder: Path, environment: dict) -> float:
    began = time.time()
    subprocess.run([sys.executable, "-c", LIBRARIES], env=environment, cwd=folder, check=True)
    return time.time() - began


def seconds_to_first_step(folder: Path, environment: dict) -> float:
    """Start the training, and end it as soon as its log has a step."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        log = Path(place) / "run" / "metrics.jsonl"
        command = [sys.executable, "-m", "anyformer_main", "train", "quickstart", *SETTINGS]
        with (folder / "output.txt").open("w") as output:
            began = time.time()
            process = subprocess.Popen(
                [*command, f"training.output_dir={log.parent}"],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=output,
            )
            while not (log.exists() and log.read_text().endswith("\n")):
                if process.poll() is not None or time.time() - began > LONGEST:
                    raise SystemExit(f"no first step: {(folder / 'output.txt').read_text()[-2000:]}")
                time.sleep(0.1)
            process.send_signal(signal.SIGKILL)
            process.wait()
        return json.loads(log.read_text().splitlines()[0])["time"] - began


def main(argv=None):
    p = method.parser(__doc__, rounds=3)
    p.add_argument("--before", metavar="COMMIT", help="also by this commit")
    args = method.start(p, argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="first-step-")))
        environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "ANYFORMER_CACHE": str(folder / "cache")}
        arms = {
            "libraries": lambda: seconds_to_import(folder, environment),
            "anyformer train quickstart": lambda: seconds_to_first_step(folder, environment),
        }
        if args.before is not None:
            link_package(stack.enter_context(checkout(args.before, folder / "checkout")), folder / "code")
            earlier = environment | {
                "PYTHONPATH": str(folder / "code"),
                "ANYFORMER_CACHE": str(folder / "cache-before"),
            }
            arms[f"the same at {args.before}"] = lambda: seconds_to_first_step(folder, earlier)
        found = {name: [] for name in arms}
        for number in range((1 if args.quick else args.rounds) + 1):
            for name, arm in arms.items():
                seconds = arm()
                if number > 0:
                    found[name].append(seconds)
    print("\n| what | seconds to the first step | of rounds |\n|---|---|---|")
    for name, seconds in found.items():
        print(f"| {name} | {np.median(seconds):.1f} | {', '.join(f'{x:.1f}' for x in seconds)} |")


if __name__ == "__main__":
    main()
