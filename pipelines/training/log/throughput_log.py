"""Throughput for the training log: tokens per second, share of the peak FLOP/s (MFU) and memory."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers import TrainingArguments

from ...accounting.flops import FlopCount, count_tokens, measured_flops, peak_flops
from ...accounting.lora import plain
from ..losses.evaluation_sums import float64_device

# How often a process measures its own speed, for how long, and by which matrix product.
SECONDS_BETWEEN_PROBES, SECONDS_OF_PROBE = 60, 0.03
PROBES, PROBE = {"cuda": (torch.bfloat16, 2048)}, (torch.float32, 512)


class ThroughputLog:
    """Counts tokens and FLOPs of training batches without waiting for the device.

    Time spent on evaluation and checkpoints (`paused`) does not count. seconds: training time up to the last log.
    waited: the part of it spent waiting for batches. shared: number of processes that count the same tokens.
    flop_count: of the whole model; None: it is made from the model that add_batch gets.
    """

    def __init__(self, args: TrainingArguments, shared: int = 1, flop_count: FlopCount | None = None):
        self.args, self.shared = args, shared
        self.tokens = self.flops = 0  # of this process since training began
        self.batch_tokens = 0  # of the last batch
        self._logged_tokens = self._logged_flops = 0  # of all processes, at the last log
        self._taken_flops = 0.0
        self._flop_count, self._peak = flop_count, None
        self.seconds = self.waited = 0.0
        self._clock, self._paused, self._loading = time.perf_counter(), 0.0, 0.0
        self._speed, self._probed = 0.0, float("-inf")

    def start(self) -> None:
        """Called when training begins: starts the clock and resets the peak memory."""
        if self.args.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.args.device)
        self._clock = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in the block is not training time."""
        started = time.perf_counter()
        yield
        self._paused += time.perf_counter() - started

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Time in the block is spent waiting for batches."""
        started = time.perf_counter()
        yield
        self._loading += time.perf_counter() - started

    def add_batch(self, model: torch.nn.Module, inputs: dict) -> None:
        if self._flop_count is None:
            self._flop_count = FlopCount(plain(model))
        self.batch_tokens = count_tokens(inputs, model.config)
        self.tokens = self.tokens + self.batch_tokens
        self.flops = self.flops + self._flop_count.of_batch(inputs)

    def new_flops(self) -> float:
        """The FLOPs of this process since the last call; waits for the device."""
        flops = float(self.flops) / self.shared
        new, self._taken_flops = flops - self._taken_flops, flops
        return new

    def collect(self, reduce: Callable, gather: Callable) -> dict:
        """Numbers for the log, since the last call. `data_share`: share of this process's time waiting for batches.

        reduce: (tensor, "sum") -> its sum over all processes. gather: (1, N) -> (processes, N).
        """
        now = time.perf_counter()
        seconds = max(1e-9, now - self._clock - self._paused)
        local = torch.tensor([float(self.tokens), float(self.flops)], dtype=torch.float64) / self.shared
        tokens, flops = reduce(local.to(float64_device(self.args.device)), "sum").tolist()
        rate = (tokens - self._logged_tokens) / seconds
        achieved = (flops - self._logged_flops) / seconds / self.args.world_size
        if self._peak is None or achieved > self._peak:  # then the peak was measured on a busy machine
            dtype = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else torch.float32
            self._peak = peak_flops(self.args.device, dtype, again=self._peak is not None)[0]
        share = self._loading / seconds
        self.seconds, self.waited, self._loading = self.seconds + seconds, self.waited + self._loading, 0.0
        self._clock, self._logged_tokens, self._logged_flops, self._paused = time.perf_counter(), tokens, flops, 0.0
        # Convolutional models have no transformer layers, and their FLOPs are not counted.
        utilization = {"mfu": achieved / self._peak} if self._flop_count.layers else {}
        return {
            "tokens_per_second": rate,
            **utilization,
            "data_share": min(1.0, share),
            **({} if self.args.world_size == 1 else self._late(share, gather)),
            "memory_gb": peak_memory(self.args.device) / 1e9,
            "tokens": int(tokens),
        }

    def _late(self, share: float, gather: Callable) -> dict:
        """Which process waits longest for data, and which computes slowest: its speed as a share of the median's.

        The speed is that of a matrix product, because in a step all processes wait for the slowest.
        """
        device = self.args.device
        if time.perf_counter() - self._probed > SECONDS_BETWEEN_PROBES:
            dtype, size = PROBES.get(device.type, PROBE)
            self._speed = measured_flops(device, dtype, SECONDS_OF_PROBE, size)
            self._probed = time.perf_counter()
        here = torch.tensor([[min(1.0, share), self._speed / 1e9]], device=device)
        waits, speeds = gather(here).cpu().unbind(1)
        waiting, slowest = int(waits.argmax()), int(speeds.argmin())
        rates = {"most_data_share": float(waits[waiting]), "waiting_rank": waiting, "slowest_rank": slowest}
        return rates | {"slowest_speed": float(speeds[slowest] / speeds.quantile(0.5))}

    def facts(self) -> dict[str, float]:
        """For run.json: the seconds of training, and the share of them spent waiting for batches."""
        share = self.waited / max(self.seconds, 1e-9)
        return {"training_seconds": round(self.seconds, 1), "data_share": round(min(1.0, share), 4)}


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: what torch allocated on a GPU, or the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
