"""Our own commands in separate processes, several at a time; the output of each goes into a file."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from ..training.engines.launch import count_gpus, threads_of_each

PRELOADED = ["anyformer.pipelines.training.run"]  # imported, with torch, once: all other processes are forked from it
LOOK_SECONDS = 0.5  # between two looks at the running commands
STOPS = (signal.SIGTERM, signal.SIGINT)


@dataclass
class Command:
    """A command line of ours without `anyformer`, and the file for its output."""

    argv: list[str]
    log: Path

    def last_line(self) -> str:
        """The last line of its output that is not blank, or nothing."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").split("\n")
        except OSError:
            return ""  # not started yet
        return next((line for line in reversed(lines) if line.strip()), "")


def run_commands(
    commands: Iterator[Command],
    at_once: int,
    entry: Callable[[list[str]], int],
    ended: Callable[[Command, int], None],
    watch: Callable[[list[Command]], None] = lambda running: None,
) -> int:
    """Run commands until there are no more; returns 0, or 128 + n if signal n stopped them.

    A signal is passed on once to the running commands, which save and stop, and no more are started. Each command gets
    its share of the cores, and the machine's GPUs are assigned in turn.

    Args:
        commands: asked for the next one when there is room for it.
        entry: runs a command in its process; a function of a module, such as the command line's `main`.
        ended: called with each command and its exit code, -n if signal n killed it.
        watch: called at least every half second with the running commands.
    """
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(kind)
    if kind == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    running: dict[int, tuple] = {}
    received: list[int] = []

    def hand_on(number, frame):
        if not received:
            received.append(number)
            for process, _ in running.values():
                process.terminate()

    previous = {number: signal.signal(number, hand_on) for number in STOPS}
    try:
        while True:
            while not received and len(running) < at_once and (command := next(commands, None)) is not None:
                place = next(number for number in range(at_once) if number not in running)
                command.log.parent.mkdir(parents=True, exist_ok=True)
                process = context.Process(target=_run, args=(entry, command.argv, str(command.log), place, at_once))
                process.start()
                running[place] = process, command
                if received:  # the signal came while the process was being started
                    process.terminate()
            if not running:
                return 128 + received[0] if received else 0
            wait([process.sentinel for process, _ in running.values()], LOOK_SECONDS)
            for place, (process, command) in list(running.items()):
                if process.exitcode is not None:
                    del running[place]
                    ended(command, process.exitcode)
            watch([command for _, command in running.values()])
    finally:
        for process, _ in running.values():  # some are left if an error of ours ended the loop
            process.terminate()
        for number, handler in previous.items():
            signal.signal(number, handler)


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
