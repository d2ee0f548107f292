"""Members of a study made by our own commands in separate processes, several at a time; each has a file for output."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from ..training.engines.launch import count_gpus, threads_of_each
from .study import Member

PRELOADED = ["anyformer.pipelines.training.run"]  # imported, with torch, once: all other processes are forked from it
LOOK_SECONDS = 0.5  # between two looks at the running commands
STOPS = (signal.SIGTERM, signal.SIGINT)


def last_line(log: Path) -> str:
    """The last line of a command's output that is not blank, or nothing."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""  # not started yet
    return next((line for line in reversed(lines) if line.strip()), "")


@dataclass
class Workers:
    """Makes members by commands in processes, which share the cores and are assigned the machine's GPUs in turn.

    A signal is passed on once to the running commands, which save and stop, and no more are started.

    at_once: how many there are at a time. entry: runs a command in its process; a function of a module, such as the
    command line's `main`. words: the command line without `anyformer`, to which a member's settings are added. ended:
    called with each member, its exit code (-n if signal n killed it) and its seconds. watch: called at least every half
    second with the newest line of each running member.
    """

    at_once: int
    entry: Callable[[list[str]], int]
    words: list[str]
    ended: Callable[[Member, int, float], None]
    watch: Callable[[list[str]], None] = lambda lines: None
    running: dict[int, tuple] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)

    def __enter__(self) -> "Workers":
        kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.context = multiprocessing.get_context(kind)
        if kind == "forkserver":
            self.context.set_forkserver_preload(PRELOADED)
        self.previous = {number: signal.signal(number, self.hand_on) for number in STOPS}
        return self

    def __exit__(self, *error) -> None:
        self.terminate()  # some are left if an error of ours ended the loop
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def hand_on(self, number, frame) -> None:
        if not self.received:
            self.received.append(number)
            self.terminate()

    def terminate(self) -> None:
        for process, *_ in self.running.values():
            process.terminate()

    def has_room(self) -> bool:
        """Wait until one more may be started; False once a signal has come."""
        while not self.received and len(self.running) == self.at_once:
            self.look()
        return not self.received

    def start(self, member: Member) -> None:
        place = next(number for number in range(self.at_once) if number not in self.running)
        member.log.parent.mkdir(parents=True, exist_ok=True)
        command = (self.entry, [*self.words, *member.settings], str(member.log), place, self.at_once)
        process = self.context.Process(target=_run, args=command)
        process.start()
        member.state = "running"
        self.running[place] = process, member, time.monotonic()
        if self.received:  # the signal came while the process was being started
            process.terminate()

    def end(self) -> int:
        """Wait for those that run; returns 0, or 128 + n if signal n stopped them."""
        while self.running:
            self.look()
        return 128 + self.received[0] if self.received else 0

    def look(self) -> None:
        """Wait a moment, and report what has ended until then."""
        wait([process.sentinel for process, *_ in self.running.values()], LOOK_SECONDS)
        for place, (process, member, started) in list(self.running.items()):
            if process.exitcode is not None:
                del self.running[place]
                self.ended(member, process.exitcode, time.monotonic() - started)
        self.watch([f"{member.log.stem}: {last_line(member.log)}" for _, member, _ in self.running.values()])


def _run(entry, argv: list[str], log: str, place: int, at_once: int) -> None:
    """Run the command in the new process, its output in the file; it stops as on SIGTERM if its parent dies."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.setpgrp()  # Ctrl-C then reaches only the parent, which passes it on

    def stop_without_parent():
        wait([multiprocessing.parent_process().sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_without_parent, daemon=True).start()
    if at_once > 1:
        import torch

        torch.set_num_threads(min(torch.get_num_threads(), threads_of_each(at_once)))
        gpus = count_gpus()
        if gpus:
            names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
            os.environ["CUDA_VISIBLE_DEVICES"] = names.split(",")[place % gpus]
    sys.exit(entry(argv))
