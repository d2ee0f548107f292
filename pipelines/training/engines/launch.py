"""`anyformer train RECIPE --launch zero2 --nproc 4`: the same command in several processes of this machine.

Each rank gets torchrun's environment variables. torchrun itself exits with 1 after every failure or signal, kills ranks
30 seconds after a signal, maybe in the middle of a checkpoint, and prints a page where a rank gives one sentence; it is
meant for several machines (docs/clusters.md).
"""

import ctypes
import glob
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError, did_you_mean
from ...recipes.deepspeed_settings import zero_stage
from ...recipes.parallelism import MESH, check_processes, engine_of, processes_of, words_of
from ...recipes.recipe_files import shipped
from ...recipes.schema import Recipe
from ...recipes.types import show
from .deepspeed_engine import check_whole_matrices
from .engine import RANKS
from .fsdp import with_shards

FSDP2 = "fsdp2"  # training.parallelism={dp_shard: N} in N processes
# The variable names a file into which a rank writes why it fails; this is torchrun's protocol.
ERROR_FILE, OURS = "TORCHELASTIC_ERROR_FILE", "ANYFORMER_LAUNCHER"
# {signal that the launcher receives: signal that it sends to its ranks}. A closed terminal must not end a run without a
# checkpoint, so SIGHUP becomes SIGTERM.
FORWARDED = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}
GRACE_SECONDS = 10  # between SIGTERM and SIGKILL; ranks may wait for a failed one in a call that no signal interrupts
POLL_SECONDS = 0.05
STOP_SECONDS = 60  # after a signal: from the end of the first rank to that of the last
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Error messages of gloo, NCCL and sockets when another process has ended.
GONE = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")
LOST_ANOTHER = "another process of this run has ended, and none can go on without it; that one says why"


def launch(argv: Sequence[str], recipe: Recipe, engine: str, nproc: int | None) -> int:
    """Train `recipe` in `nproc` processes under `engine`; return the job's exit code.

    argv: the command line, which each process gets without the launcher's options. nproc: None for one per GPU.
    The code is 0 (finished), 128 + n (stopped by signal n with a checkpoint), or that of the first rank that failed,
    whose sentence is printed on one line.

    Raises:
        UserError: for an unknown engine, one that this machine cannot run, settings that contradict it, or if another
            launcher has started this process.
    """
    overrides = settings_of(engine, recipe)
    shares = recipe.training.parallelism
    if nproc is None and shares is not None:
        nproc = processes_of(shares)
    count = count_processes(engine, nproc)
    if shares is not None:
        check_processes(shares, count, f"--nproc {count}")
    elif engine == FSDP2:
        with_shards(recipe, dp_shard=count)
        overrides = [f"training.parallelism={{dp_shard: {count}}}"]
    command = [sys.executable, "-P", "-m", "anyformer_main", *without_options(argv, "--launch", "--nproc"), *overrides]
    threads = os.environ.get("OMP_NUM_THREADS", str(threads_of_each(count)))
    return supervise(command, {"OMP_NUM_THREADS": threads}, count)


def engines() -> list[str]:
    return ["ddp", *shipped("deepspeed", ".json"), FSDP2, MESH]


def settings_of(engine: str, recipe: Recipe) -> list[str]:
    """The overrides of the recipe that make a rank's trainer use the engine; of FSDP2 `launch` adds the number."""
    if engine not in engines():
        raise UserError(f"--launch {engine}: no such engine{did_you_mean(engine, engines())}")
    if rank := next((name for name in RANKS if name in os.environ), None):
        raise UserError(
            f"--launch {engine} starts processes itself, but this one is the rank {os.environ[rank]} of a launcher "
            f"({rank} is set); leave --launch out, or the launcher"
        )
    shares = recipe.training.parallelism
    if shares is None and engine == MESH:
        raise UserError(
            "--launch mesh takes training.parallelism, which is null; set it, such as "
            "training.parallelism='{dp_shard: 2}'"
        )
    if shares is not None and not engine.startswith(engine_of(shares)):
        raise UserError(
            f"--launch {engine}, but training.parallelism={words_of(shares)} runs by --launch {engine_of(shares)}; "
            f"write that, or set it to null"
        )
    setting = recipe.training.extra.get("deepspeed")
    if not engine.startswith("zero"):
        if setting:
            raise UserError(
                f"--launch {engine}, but training.deepspeed={show(setting)}; write --launch zero2, or set it to null"
            )
        return []
    check_whole_matrices(recipe.training)
    stage = int(engine[4]) if setting is None else zero_stage(recipe.training)
    if stage != int(engine[4]):
        raise UserError(
            f"--launch {engine}, but training.deepspeed={show(setting)} is of stage {stage}; write --launch "
            f"zero{stage or 1}, or set it to null"
        )
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError(f"--launch {engine} needs DeepSpeed, which is not installed; install anyformer[deepspeed]")
    return [f"training.deepspeed={engine}"] if setting is None else []


def count_processes(engine: str, nproc: int | None) -> int:
    """The number of processes to start; raises UserError if the GPUs do not suffice, or nproc is None without GPUs."""
    gpus = count_gpus()
    if nproc is None and not gpus:
        raise UserError(
            f"--launch {engine} starts one per NVIDIA GPU, and there is none here; say how many, such as --nproc 2"
        )
    if gpus and nproc is not None and nproc > gpus:
        raise UserError(
            f"--nproc {nproc}: each process needs a GPU of its own, and there are {gpus}; set {gpus} or less"
        )
    return gpus if nproc is None else nproc


def count_gpus() -> int:
    """The number of NVIDIA GPUs that processes will see; other accelerators could only be counted by torch."""
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not devices or visible is None:
        return devices
    named = [name.strip() for name in visible.split(",")]
    return 0 if named[0] in ("", "-1") else len(named)


def threads_of_each(count: int) -> int:
    return max(1, len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())) // count)


def without_options(argv: Sequence[str], *options: str) -> list[str]:
    """The arguments without some options and their values."""
    rest, words = [], iter(argv)
    for word in words:
        if word in options:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            rest.append(word)
    return rest


def tell_launcher(sentence: str) -> bool:
    """In a rank: write why it fails for its launcher; return whether that is ours, which prints it once."""
    file = os.environ.get(ERROR_FILE)
    if not file:
        return False
    report = {
        "message": {"message": sentence, "extraInfo": {"py_callstack": sentence, "timestamp": str(int(time.time()))}}
    }
    Path(file).write_text(json.dumps(report), encoding="utf-8")
    return OURS in os.environ


def lost_another(error: BaseException) -> bool:
    """Whether a rank's error only says that another rank has ended; that one reports the reason."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return several and isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in GONE)


def supervise(command: Sequence[str], environment: dict[str, str], count: int) -> int:
    """Run a command in `count` ranks, forward signals, end all ranks when one fails; return the job's exit code."""
    with tempfile.TemporaryDirectory(prefix="anyformer-launch-") as folder:
        return Job(count, Path(folder)).run(command, environment)


class Job:
    """The processes of one command on this machine. They get torchrun's variables, and Ctrl-C only once."""

    def __init__(self, count: int, folder: Path):
        self.count, self.errors = count, [folder / f"{rank}.json" for rank in range(count)]
        self.ranks: list[subprocess.Popen] = []
        self.received: list[int] = []
        self.handed_on = 0  # number of received signals that were forwarded
        self.stopped_at: float | None = None

    def run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        heard = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, lambda n, frame: self.received.append(n)) for number in heard}
        try:
            self._start(command, environment)
            while None in [rank.poll() for rank in self.ranks] and self._first_failed() is None:
                time.sleep(POLL_SECONDS)
                self._hand_on()
                if self._stops_no_more():
                    self._end()
            failed = self._first_failed()
            return self._code() if failed is None else self._fail(failed)
        finally:
            self._end()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        everywhere = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), OURS: str(os.getpid())}
        sizes = {"WORLD_SIZE": str(self.count), "LOCAL_WORLD_SIZE": str(self.count)}
        for rank, file in enumerate(self.errors):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), ERROR_FILE: str(file)}
            self.ranks.append(
                subprocess.Popen(
                    command,
                    env=os.environ | environment | everywhere | sizes | of_rank,
                    start_new_session=True,  # otherwise Ctrl-C would come twice, from the terminal and from here
                    preexec_fn=_end_with_the_launcher if sys.platform == "linux" else None,
                )
            )

    def _hand_on(self) -> None:
        for number in self.received[self.handed_on :]:
            self.handed_on += 1
            for rank in self.ranks:
                if rank.poll() is None:
                    rank.send_signal(FORWARDED[number])

    def _stops_no_more(self) -> bool:
        """Whether, after a signal, other ranks still run STOP_SECONDS after the first one ended."""
        if not self.received or not any(rank.returncode for rank in self.ranks):
            return False
        self.stopped_at = self.stopped_at or time.monotonic()
        return time.monotonic() - self.stopped_at > STOP_SECONDS

    def _first_failed(self) -> int | None:
        """The rank that failed first. After a signal: None until all have ended, and if one was stopped or killed."""
        ended = {rank: p.returncode for rank, p in enumerate(self.ranks) if p.returncode is not None}
        stopped = [code for code in ended.values() if code in {128 + n for n in FORWARDED}]
        if self.received and (len(ended) < self.count or stopped or min(ended.values()) < 0):
            return None
        failed = [rank for rank, code in ended.items() if code != 0 and code not in stopped]
        # A killed rank comes first, because it makes the others fail; then the one that reported its error first.
        return min(failed, key=lambda rank: (ended[rank] > 0, self._told_at(rank)), default=None)

    def _told_at(self, rank: int) -> float:
        return self.errors[rank].stat().st_mtime_ns if self.errors[rank].exists() else float("inf")

    def _code(self) -> int:
        """The exit code of a job in which no rank failed: 0, or 128 + the signal that stopped it."""
        codes = [rank.returncode for rank in self.ranks if rank.returncode]
        if not codes:
            return 0
        return 128 + FORWARDED[self.received[0]] if self.received else codes[0]

    def _fail(self, rank: int) -> int:
        """Print the error of a rank on one line; return its exit code."""
        code = self.ranks[rank].returncode
        self._end()
        if code < 0:
            name = signal.Signals(-code).name
            memory = "; without memory the system kills so" if -code == signal.SIGKILL else ""
            reason = f"killed by {name}{memory}"
        elif self.errors[rank].exists():
            reason = " ".join(json.loads(self.errors[rank].read_text(encoding="utf-8"))["message"]["message"].split())
        else:
            reason = f"ended with exit code {code}; what it has printed is above"
        print(f"anyformer: rank {rank} of {self.count}: {reason}", file=sys.stderr, flush=True)
        return code if code > 0 else 128 - code

    def _end(self) -> None:
        """End the ranks that still run: by SIGTERM, and after GRACE_SECONDS by SIGKILL."""
        running = [rank for rank in self.ranks if rank.poll() is None]
        for rank in running:
            rank.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for rank in running:
            try:
                rank.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_the_launcher() -> None:
    """In a rank, before its program: ask for SIGTERM when the launcher dies, so `kill -9` of it leaves no ranks."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
