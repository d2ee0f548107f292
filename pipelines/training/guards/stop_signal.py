"""The stop signal: on SIGTERM (sent by clusters before they take a machine) or Ctrl-C a run saves and stops.

StopSignal acts during training; before and after it StopAtOnce ends the work immediately. The same signal within
ECHO_SECONDS of the first is an echo: a cluster signals every process, and the launcher forwards the signal once more.
"""

import os
import signal
import threading
import time

import torch
from transformers import TrainerCallback

ECHO_SECONDS = 2.0
_heard: dict[int, float] = {}  # {signal: time of its first arrival}; global like the signal handlers of a process


def is_echo(number: int) -> bool:
    """Whether a signal that has just arrived is an echo of an earlier one; if it is not, its time is recorded."""
    now = time.monotonic()
    if now - _heard.get(number, -ECHO_SECONDS) < ECHO_SECONDS:
        return True
    _heard[number] = now
    return False


class StopSignal(TrainerCallback):
    """On the first SIGTERM or SIGINT the run saves and stops after the current step; a second one kills it.

    A signal during an evaluation stops the run after the evaluation, without another step.
    `received` is the signal's number n; the process exits with 128 + n, so a scheduler sees that the run is unfinished.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, accelerator):
        self.accelerator, self.received, self._previous = accelerator, None, {}
        self._came = False  # whether this process got the signal; `received` may come from another process

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
        _heard.pop(number, None)  # or the previous handler would take it for an echo
        if callable(previous):
            previous(number, frame)
        else:
            os.kill(os.getpid(), number)

    def close(self) -> None:
        """Restore the previous signal handlers, however training has ended."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_step_end(self, args, state, control, **kwargs):
        # With several accelerators the exchange makes the host wait, so it only happens at logged steps.
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
        """The signal that any process has received, the same result in all; None: there is none.

        All processes must stop after the same step, or the others would wait forever.
        """
        if args.world_size > 1:
            flag = torch.tensor(self.received or 0, device=args.device)
            self.received = int(self.accelerator.gather(flag.reshape(1)).max().item()) or None
        return self.received

    def on_train_end(self, args, state, control, **kwargs):
        self.close()
        if self.received is not None and signal.getsignal(self.received) == signal.SIG_DFL:
            # No StopAtOnce in this process: without a handler an echo would kill it after it has stopped properly.
            signal.signal(self.received, _end_unless_echo)


def _end_unless_echo(number, frame):
    if not is_echo(number):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Stopped(BaseException):
    """Raised on SIGTERM. Not a subclass of Exception, so that no `except Exception` takes it for a failure."""


class StopAtOnce:
    """In the block the first SIGTERM raises Stopped at the current line, and a second one kills the process.

    During training StopSignal replaces its handler. `active` is true only in the main process: the others may wait for
    it in a call that no Python handler interrupts, so the signal just ends them. `received` is the signal's number. If
    a signal was received, the handler stays until `close`, so that cleaning up is not interrupted by an echo.
    """

    def __init__(self, active: bool):
        self.active = active and threading.current_thread() is threading.main_thread()
        self.received = self._previous = None

    def __enter__(self):
        _heard.clear()  # signals of an earlier run in this process
        if self.active:
            self.process, self._previous = os.getpid(), signal.signal(signal.SIGTERM, self._handle)
        return self

    def _handle(self, number, frame):
        if os.getpid() != self.process:  # a worker of a data loader inherits the handler
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
        """Restore the previous signal handler."""
        if self.active:
            self.active = False
            signal.signal(signal.SIGTERM, self._previous)
