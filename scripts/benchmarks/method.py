"""The measuring method of all benchmarks here, made for noisy machines.

Arms are run in turn, each round in another order; a round gives one ratio per arm (reference time / arm time, so more
than 1 is faster); the figure is the median over rounds with a bootstrap interval of 90 %. Time is the process's CPU
clock with one thread: other processes affect it only through caches, clock speed and memory. The guard, which is the
reference run a second time, shows that remaining noise: unless its ratio is within 0.97-1.03 the run is void, neither
passed nor failed; so is a run in bf16 (`what` begins with it) on a CPU without instructions for it, which measures an
emulation. Arms must compute equal results before they are timed.
"""

import argparse
import gc
import importlib.metadata
import math
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

GUARD = "guard"
GUARD_RANGE = (0.97, 1.03)
LOSS_TOLERANCE = 1e-4  # relative, in fp32
QUICK_ROUNDS = 5
SHORTEST = 0.3  # seconds a timing should last at least: shorter arms are called several times for one


@dataclass(frozen=True)
class Goal:
    """A ratio to reach. The whole interval must be on the right side of it."""

    ratio: float
    at_least: bool = True

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.ratio:g}"

    def verdict(self, low: float, high: float) -> str:
        if not self.at_least:
            return "met" if high <= self.ratio else "missed" if low > self.ratio else "open"
        return "met" if low >= self.ratio else "missed" if high < self.ratio else "open"


@dataclass
class Timing:
    """One arm's seconds per round, and its ratios to the reference."""

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return float(np.median(self.ratios))

    @property
    def interval(self) -> tuple[float, float]:
        """Bootstrap interval (90 %) of the median ratio."""
        draws = np.random.default_rng(0).choice(self.ratios, (2000, len(self.ratios)))
        low, high = np.quantile(np.median(draws, axis=1), (0.05, 0.95))
        return float(low), float(high)

    @property
    def milliseconds(self) -> float:
        return 1e3 * float(np.median(self.seconds))


def cpu_seconds(arm: Callable) -> float:
    """CPU time of one call, all threads together. An arm may return the seconds itself (when it times a part)."""
    start = time.process_time()
    own = arm()
    return own if isinstance(own, float) else time.process_time() - start


def seconds_in_fork(function: Callable) -> float:
    """CPU seconds of `function` in a forked child; where it returns seconds itself, those.

    For work that happens once per process: in one process it gets slower from run to run, as it works between what
    earlier runs left of the heap (a tokenizer by half after twenty runs), and the arm after a trainer suffers most.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(sender, repr(cpu_seconds(function)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(sender)
    with os.fdopen(receiver) as stream:
        text = stream.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("a forked run failed")
    return float(text)


def compare(
    arms: dict[str, Callable],
    reference: str,
    rounds: int,
    warm: int = 2,
    clock=cpu_seconds,
    shortest: float | None = None,
) -> dict:
    """Time `arms` in rotated order; returns {name: Timing}, with the guard under GUARD.

    Ratios are reference / arm. `clock(arm)` calls the arm once and returns seconds. shortest: None: SHORTEST.
    """
    shortest = SHORTEST if shortest is None else shortest
    arms = arms | {GUARD: arms[reference]}
    calls = {}
    for name, arm in arms.items():
        last = [clock(arm) for _ in range(warm)][-1]
        calls[name] = max(1, math.ceil(shortest / max(last, 1e-4)))
    calls[GUARD] = calls[reference]
    names, timings = list(arms), {name: Timing() for name in arms}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            turn = number % len(names)
            taken = {}
            for name in names[turn:] + names[:turn]:
                taken[name] = sum(clock(arms[name]) for _ in range(calls[name])) / calls[name]
                gc.collect()  # or what an arm leaves behind slows the one that always comes after it
            for name in names:
                timings[name].seconds.append(taken[name])
                timings[name].ratios.append(taken[reference] / taken[name])
    finally:
        gc.enable()
    return timings


def peak_bytes(step: Callable) -> int:
    """Most bytes that torch's CPU allocator holds during `step` beyond those it began with."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    held = most = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def relative_to(timings: dict, peer: str, arm: str) -> Timing:
    """`arm`'s ratios to another arm of the same rounds instead of to the reference."""
    pairs = zip(timings[peer].seconds, timings[arm].seconds)
    return Timing(timings[arm].seconds, [theirs / own for theirs, own in pairs])


def is_void(timings: dict) -> bool:
    return not GUARD_RANGE[0] <= timings[GUARD].ratio <= GUARD_RANGE[1]


def instruction_sets() -> list[str]:
    """Those of this CPU that decide a benchmark."""
    known = torch.cpu.get_capabilities()
    return [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if known.get(name)]


def is_emulated(what: str) -> bool:
    """Whether a run named `what` is in bf16 on a CPU that has no instructions for it."""
    return what.startswith("bf16") and not {"avx512_bf16", "amx_bf16"} & set(instruction_sets())


def require_equal(values: dict[str, float], tolerance: float = LOSS_TOLERANCE) -> None:
    """Exit with a sentence unless all arms computed the same number."""
    (first, expected), *others = values.items()
    for name, value in others:
        if not abs(value - expected) <= tolerance * abs(expected):
            raise SystemExit(
                f"not comparable: {name} computes {value!r}, {first} {expected!r} (tolerance {tolerance:g})"
            )


HEADER = "| what | arm | ratio to | ratio (90 % interval) | ms | goal | verdict |\n|---|---|---|---|---|---|---|"


def row(what: str, arm: str, peer: str, timing: Timing, goal: Goal | None, void: bool, better: str = "faster") -> str:
    """One line of the markdown table."""
    low, high = timing.interval
    verdict = "-" if goal is None else "void" if void or is_emulated(what) else goal.verdict(low, high)
    cells = (
        what,
        arm,
        peer,
        f"{timing.ratio:.3f} ({low:.3f}-{high:.3f})",
        f"{timing.milliseconds:.1f}",
        str(goal or "-"),
        verdict,
    )
    return f"| {' | '.join(cells)} |"


def guard_row(what: str, reference: str, timings: dict) -> str:
    """The guard's line: reference against itself."""
    low, high = timings[GUARD].interval
    figures = f"{timings[GUARD].ratio:.3f} ({low:.3f}-{high:.3f})"
    verdict = "void: no bf16 instructions" if is_emulated(what) else "void" if is_void(timings) else "valid"
    span = f"{GUARD_RANGE[0]}-{GUARD_RANGE[1]}"
    return f"| {what} | guard | {reference} | {figures} | {timings[GUARD].milliseconds:.1f} | {span} | {verdict} |"


def memory_row(what: str, arm: str, peer: str, peaks: dict[str, int], has_goal: bool) -> str:
    """One line on peak memory; the goal is to need no more than the peer."""
    share, goal = peaks[arm] / peaks[peer], Goal(1.0, at_least=False)
    verdict = goal.verdict(share, share) if has_goal else "-"
    return f"| {what} | {arm} | {peer} | peak memory {share:.3f} | - | {goal if has_goal else '-'} | {verdict} |"


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def machine() -> str:
    """Machine, versions, commit and command, printed beside every number."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ]
        cpu = names[0] if names else cpu
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "transformers", "accelerate", "datasets", "tokenizers")
    )
    root = Path(__file__).resolve().parents[2]
    commit = ""
    if shutil.which("git"):
        commit = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        ).stdout.strip()
    return (
        f"machine: {cpu}, {os.cpu_count()} cores ({' '.join(instruction_sets())}), {device}\n"
        f"versions: Python {platform.python_version()}, {versions}\n"
        f"commit: {commit or 'unknown'}; load {os.getloadavg()[0]:.1f}; {time.strftime('%Y-%m-%d %H:%M')}\n"
        f"command: python {Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".rstrip()
    )


def parser(description: str, rounds: int = 9) -> argparse.ArgumentParser:
    """The options all benchmarks share."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--rounds", type=int, default=rounds, help="rounds; each runs every arm once")
    p.add_argument("--threads", type=int, default=1, help="threads; the CPU clock is only comparable with 1")
    p.add_argument("--quick", action="store_true", help="at most a minute: smaller, fewer rounds, nothing compiled")
    return p


def start(p: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse, set the threads, print the header."""
    args = p.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(machine(), flush=True)
    return args
