"""The measuring method of all benchmarks here, made for noisy machines.

Variants are run in turn, each round in another order; a round gives one ratio per variant (reference time / variant
time, so more than 1 is faster); the figure is the median over rounds with a bootstrap interval of 90 %. Time is the
process's CPU clock with one thread where not said otherwise: other processes affect it only through caches, clock speed
and memory. The guard, which is the reference run a second time, shows that remaining noise: unless its ratio is within
0.97-1.03 the run is void, neither passed nor failed; so is a run in bf16 on a CPU without instructions for it, which
measures an emulation. The first call of each variant must give an equal result.
"""

import gc
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from anyformer.pipelines.storage.record import package_versions
from anyformer.pipelines.training.log.hardware import processor_name
from checkout import commit
from torch.profiler import ProfilerActivity, profile

GUARD = "guard"
GUARD_RANGE = (0.97, 1.03)
TOLERANCE = 1e-4  # relative, in fp32
BF16_TOLERANCE = 5e-3  # autocast rounds each product to 8 bits
SHORTEST = 0.3  # seconds that a timing should last at least; shorter variants are called several times in one


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
class Timed:
    """A call: its seconds and its result."""

    seconds: float
    value: object = None


@dataclass
class Timing:
    """One variant's seconds per round, and its ratios to the reference."""

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


def with_clock(now: Callable[[], float], variant: Callable) -> Timed:
    start = now()
    value = variant()
    return Timed(now() - start, value)


def cpu_seconds(variant: Callable) -> Timed:
    """CPU time of one call, all threads together."""
    return with_clock(time.process_time, variant)


# -------------------------------------------------------------------------------------------------------- comparison


def close(value, expected, tolerance: float) -> bool:
    """Whether numbers, or arrays of them, are equal but for `tolerance` of the largest one."""
    value, expected = (np.asarray(torch.as_tensor(x).detach().cpu().double()) for x in (value, expected))
    return value.shape == expected.shape and bool(abs(value - expected).max() <= tolerance * abs(expected).max())


def require_equal(values: dict, tolerance: float = TOLERANCE, same: Callable = close) -> None:
    """Exit with a sentence unless all variants gave the same result; None is not compared."""
    (first, expected), *others = values.items()
    for name, value in others:
        if value is not None and expected is not None and not same(value, expected, tolerance):
            value, expected = (x.item() if torch.is_tensor(x) and x.numel() == 1 else x for x in (value, expected))
            raise SystemExit(
                f"not comparable: {name} gives {value!r:.200}, {first} {expected!r:.200} (tolerance {tolerance:g})"
            )


def compare(
    variants: dict[str, Callable],
    rounds: int,
    clock: Callable[[Callable], Timed] = cpu_seconds,
    warm: int = 1,
    shortest: float | None = None,
    tolerance: float = TOLERANCE,
    same: Callable = close,
) -> dict[str, Timing]:
    """Time `variants`, the first of which is the reference, in rotated order; the guard's timing is under GUARD.

    Args:
        clock: times one call of a variant. warm: calls of each variant before the rounds, 1 or more.
        shortest: None: SHORTEST.
        tolerance, same: for comparing the results of the first calls (see `require_equal`).
    """
    shortest = SHORTEST if shortest is None else shortest
    reference, names = next(iter(variants)), list(variants)
    calls, first = dict.fromkeys(variants, 1), {}
    for name in names:
        first[name] = clock(variants[name])
        last = [first[name], *(clock(variants[name]) for _ in range(warm - 1))][-1]
        calls[name] = max(1, math.ceil(shortest / max(last.seconds, 1e-4)))
    require_equal({name: call.value for name, call in first.items()}, tolerance, same)
    variants, names = variants | {GUARD: variants[reference]}, [*names, GUARD]
    calls[GUARD] = calls[reference]
    timings = {name: Timing() for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            turn, taken = number % len(names), {}
            for name in names[turn:] + names[:turn]:
                timed_calls = [clock(variants[name]) for _ in range(calls[name])]
                taken[name] = sum(call.seconds for call in timed_calls) / len(timed_calls)
                del timed_calls
                gc.collect()  # otherwise a variant's garbage slows the variant that always comes after it
            for name in names:
                timings[name].seconds.append(taken[name])
                timings[name].ratios.append(taken[reference] / taken[name])
    finally:
        gc.enable()
    return timings


def relative_to(timings: dict, peer: str, variant: str) -> Timing:
    """The ratios of `variant` to `peer` instead of to the reference, in the same rounds."""
    pairs = zip(timings[peer].seconds, timings[variant].seconds)
    return Timing(timings[variant].seconds, [theirs / ours for theirs, ours in pairs])


def peak_bytes(step: Callable) -> int:
    """Most bytes that torch's CPU allocator holds during `step` beyond those it began with."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def instruction_sets() -> list[str]:
    """The instruction sets of this CPU that matter to benchmarks."""
    known = torch.cpu.get_capabilities()
    return [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if known.get(name)]


def void_reason(timings: dict, dtype: str, device: str = "cpu") -> str | None:
    """Why a run is neither passed nor failed; None: it counts."""
    if device == "cpu" and dtype == "bf16" and not {"avx512_bf16", "amx_bf16"} & set(instruction_sets()):
        return "void: no bf16 instructions"
    if GUARD in timings and not GUARD_RANGE[0] <= timings[GUARD].ratio <= GUARD_RANGE[1]:
        return "void"
    return None


def line(*cells) -> str:
    return f"| {' | '.join(map(str, cells))} |"


COLUMNS = ("what", "variant", "ratio to", "ratio (90 % interval)", "ms", "goal", "verdict")
HEADER = f"{line(*COLUMNS)}\n{line(*['---'] * len(COLUMNS))}"


@dataclass(frozen=True)
class Figure:
    """A measured ratio. low, high: its 90 % interval; None for memory, whose figure is a share of the peer's peak.

    ms: milliseconds of the variant. goal, verdict: as they are written; "-" without a goal.
    """

    what: str
    variant: str
    peer: str
    ratio: float
    low: float | None = None
    high: float | None = None
    ms: float | None = None
    goal: str = "-"
    verdict: str = "-"

    @property
    def words(self) -> str:
        if self.low is None:
            return f"peak memory {self.ratio:.3f}"
        return f"{self.ratio:.3f} ({self.low:.3f}-{self.high:.3f})"

    def __str__(self) -> str:
        """One line of the markdown table."""
        ms = "-" if self.ms is None else f"{self.ms:.1f}"
        return line(self.what, self.variant, self.peer, self.words, ms, self.goal, self.verdict)


def speed(what: str, variant: str, peer: str, timing: Timing, goal: Goal | None, void: str | None) -> Figure:
    low, high = timing.interval
    verdict = "-" if goal is None else void or goal.verdict(low, high)
    return Figure(what, variant, peer, timing.ratio, low, high, timing.milliseconds, str(goal or "-"), verdict)


def guard(what: str, reference: str, timings: dict, void: str | None) -> Figure:
    """The reference against itself."""
    figure = speed(what, GUARD, reference, timings[GUARD], None, void)
    return replace(figure, goal=f"{GUARD_RANGE[0]}-{GUARD_RANGE[1]}", verdict=void or "valid")


def memory(what: str, variant: str, peer: str, peaks: dict[str, int], goal: Goal | None) -> Figure:
    share = peaks[variant] / peaks[peer]
    return Figure(
        what, variant, peer, share, goal=str(goal or "-"), verdict=goal.verdict(share, share) if goal else "-"
    )


def machine() -> dict[str, str]:
    """Machine, versions, commit, time, load and command, printed and kept beside every number."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {
        "machine": f"{processor_name()}, {os.cpu_count()} cores ({' '.join(instruction_sets())}), {device}",
        "versions": ", ".join(f"{name} {version}" for name, version in package_versions().items()),
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "load": f"{os.getloadavg()[0]:.1f}",
        "command": f"python {Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".rstrip(),
    }
