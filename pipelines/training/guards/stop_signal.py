"""The stop signal: on SIGTERM (sent by clusters before they take a machine) or Ctrl-C a run saves and stops.

StopSignal is for the training; before and after it StopAtOnce ends the work where it stands. What follows a signal
within ECHO_SECONDS is its echo: a cluster sends it to every process, and the launcher, which got it as well, hands it
on.
"""

import os
import signal
import threading
import time

import torch
from transformers import TrainerCallback

ECHO_SECONDS = 2.0
_heard: dict[int, float] = {}  # signal -> when this process heard it first; handlers are the process's own, too


def is_echo(number: int) -> bool:
    """Whether a signal that has just arrived belongs to the one before it."""
    now = time.monotonic()
    if now - _heard.get(number, -ECHO_SECONDS) < ECHO_SECONDS:
        return True
    _heard[number] = now
    return False


class StopSignal(TrainerCallback):
    """On the first SIGTERM or SIGINT the run saves and stops after the current step; a second one kills it.

    One that arrives during an evaluation stops the run when that has ended, at the step that was evaluated.
    `received` is the signal's number n; the process exits with 128 + n, so a scheduler sees that the run is unfinished.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, accelerator):
        self.accelerator, self.received, self._previous = accelerator, None, {}
        self._came = False  # to this process; another may have received what all agreed on

    def on_train_begin(self, args, state, control, **kwargs):
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def _handle(self, number, frame):
        if is_echo(number):
            return
        if not self._came:
            self._came, self.received = True, number
            return
        previous = self._previous.get(number)
        self.close()
        _heard.pop(number, None)  # no echo for whoever handles it now
        if callable(previous):
            previous(number, frame)
        else:
            os.kill(os.getpid(), number)

    def close(self) -> None:
        """Handle signals no more: training has ended, in whatever way."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_step_end(self, args, state, control, **kwargs):
        # On an accelerator the exchange makes the host wait, so it only happens at steps that are logged.
        several = args.world_size > 1 and args.device.type != "cpu"
        if not several or state.global_step % max(1, int(args.logging_steps)) == 0:
            self.on_evaluate(args, state, control)

    def on_evaluate(self, args, state, control, **kwargs):
        if self._previous and self.agree(args) and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        if self._previous and self.agree(args) and state.global_step < state.max_steps:
            control.should_training_stop = True

    def agree(self, args) -> int | None:
        """The signal that any process has received, told to all; None: there is none.

        All must stop after the same step, or others wait for them forever.
        """
        if args.world_size > 1:
            flag = torch.tensor(self.received or 0, device=args.device)
            self.received = int(self.accelerator.gather(flag.reshape(1)).max().item()) or None
        return self.received

    def on_train_end(self, args, state, control, **kwargs):
        self.close()
        if self.received is not None and signal.getsignal(self.received) == signal.SIG_DFL:
            # In processes without StopAtOnce: the echo must not kill what has stopped in order.
            signal.signal(self.received, _end_unless_echo)


def _end_unless_echo(number, frame):
    if not is_echo(number):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Stopped(BaseException):
    """SIGTERM has ended what was going on. No Exception, which somebody on the way might take for a failure."""


class StopAtOnce:
    """A context: in its block the first SIGTERM raises Stopped where the program stands, a second one kills.

    While StopSignal handles the signals, it does so alone. Only the main process gets one with `active`: the others may
    be waiting for it in a call that no Python handler interrupts, and just end. `received` is the signal's number.
    After the block it goes on where a signal was received, until `close`, so that what is half done can be cleaned up.
    """

    def __init__(self, active: bool):
        self.active = active and threading.current_thread() is threading.main_thread()
        self.received = self._previous = None

    def __enter__(self):
        _heard.clear()  # what an earlier run of this process heard has no echo here
        if self.active:
            self.process, self._previous = os.getpid(), signal.signal(signal.SIGTERM, self._handle)
        return self

    def _handle(self, number, frame):
        if os.getpid() != self.process:  # a worker of a data loader, which has inherited the handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if is_echo(number):
            return
        if self.received is not None:
            signal.signal(number, self._previous)
            os.kill(os.getpid(), number)
            return
        self.received = number
        raise Stopped

    def __exit__(self, *error):
        if self.received is None:
            self.close()

    def close(self) -> None:
        """Handle signals no more."""
        if self.active:
            self.active = False
            signal.signal(signal.SIGTERM, self._previous)
