"""Real processes without paying ten seconds of imports for each: forked from the test process.

A forked child is a process of its own: it can be killed with any signal, and what it leaves on disk is what a crash
leaves. One thread per process (conftest.py): OpenMP's pool does not survive a fork.
"""

import functools
import inspect
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from multiprocessing import forkserver
from pathlib import Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A child that calls `function(*args)`, with its output in a file; `code` is its exit code once it has ended.

    With `micro_batch`, it sends itself the signal `number` when that micro-batch of a training (from 1) begins.
    """

    def __init__(
        self,
        function,
        *args,
        env: dict | None = None,
        output: Path = Path(os.devnull),
        micro_batch: int | None = None,
        number: int = signal.SIGKILL,
    ):
        self.output, self.code = output, None
        self.ends_itself = micro_batch, number
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, args, env or {})

    def _run(self, function, args, env):
        code = 1
        try:
            descriptor = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            os.environ.update({k: str(v) for k, v in env.items()})
            make_thread_pool_anew()
            forkserver._forkserver.__init__()  # that of the test process is no child of this one
            if self.ends_itself[0] is not None:
                send_signal_in_micro_batch(*self.ends_itself)
            code = function(*args) or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, timeout: float = 300) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"no end after {timeout} s; output:\n{self.text()}")
            time.sleep(0.01)
        return self.code

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait()

    def wait_until(self, condition, timeout: float = 300) -> None:
        """Wait until `condition()` is true while the process runs."""
        deadline = time.monotonic() + timeout
        while not condition():
            if self.poll() is not None:
                raise AssertionError(f"ended with {self.code} too early; output:\n{self.text()}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"condition not met after {timeout} s; output:\n{self.text()}")
            time.sleep(0.002)

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.is_file() else ""


def make_thread_pool_anew() -> None:
    """Let torch replace the thread pool that this fork has lost, before another thread can ask for it.

    Torch does so at the first call after a fork, without a lock: two new threads that compute first (transformers loads
    weights in several) met "Invalid thread pool!" in 1 run of some 60.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(torch.get_num_threads())


def send_signal_in_micro_batch(micro_batch: int, number: int) -> None:
    """Patch the Trainer of this (forked) process: it sends itself a signal when a micro-batch begins."""
    from transformers import Trainer

    step, begun = Trainer.training_step, [0]

    def training_step(self, *args, **kwargs):
        begun[0] += 1
        if begun[0] == micro_batch:
            os.kill(os.getpid(), number)
        return step(self, *args, **kwargs)

    Trainer.training_step = training_step


def end_in_micro_batch(micro_batch: int, function, *args, number: int = signal.SIGKILL, output: Path) -> str:
    """Call `function(*args)` in a child that gets a signal when that micro-batch begins; return what it has written."""
    process = Process(function, *args, output=output, micro_batch=micro_batch, number=number)
    expected = -signal.SIGKILL if number == signal.SIGKILL else 128 + number
    assert process.wait() == expected, process.text()
    return process.text()


def rank_environments(world_size: int) -> list[dict]:
    """What a launcher sets for each of so many gloo ranks of this machine."""
    shared = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    return [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(world_size)]


def run_ranks(world_size: int, function, *args, folder: Path, env: dict | None = None, timeout: float = 300) -> list:
    """Run `function(*args)` on `world_size` gloo ranks; return their results in rank order.

    Raises RuntimeError with the output of the first rank that failed; the others are then killed.
    """

    def call(rank):
        (folder / f"{rank}.pkl").write_bytes(pickle.dumps(function(*args)))

    processes = [
        Process(call, rank, output=folder / f"{rank}.log", env=environment | (env or {}))
        for rank, environment in enumerate(rank_environments(world_size))
    ]
    deadline = time.monotonic() + timeout
    while any(p.poll() is None for p in processes):
        failed = [rank for rank, p in enumerate(processes) if p.poll()]
        if failed or time.monotonic() > deadline:
            for p in processes:
                if p.poll() is None:
                    p.kill()
            break
        time.sleep(0.02)
    for rank, p in sorted(enumerate(processes), key=lambda pair: pair[1].code == -signal.SIGKILL):
        if p.code:
            raise RuntimeError(f"rank {rank} of {world_size} ended with {p.code}:\n{p.text()}")
    return [pickle.loads((folder / f"{rank}.pkl").read_bytes()) for rank in range(world_size)]


def memory(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def logged_losses(run: Path) -> list[float]:
    """Training losses of a run folder, by step, from its metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def in_fresh_process(test):
    """Decorate a test that forks ranks which run a backward pass: pytest runs it again, in a process of its own.

    After some compiled programs torch refuses backward passes in forks of the process that ran them.
    """

    @functools.wraps(test)
    def wrapper(*args, request, **kwargs):
        if os.environ.get("ANYFORMER_FRESH_PROCESS") == request.node.nodeid:
            return test(*args, **kwargs)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-m",
                "slow or not slow",
                "-p",
                "no:cacheprovider",
                request.node.nodeid,
            ],
            env=os.environ | {"ANYFORMER_FRESH_PROCESS": request.node.nodeid},
            cwd=request.config.rootpath,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]

    signature = inspect.signature(test)
    request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY)
    wrapper.__signature__ = signature.replace(parameters=[*signature.parameters.values(), request])
    return wrapper
