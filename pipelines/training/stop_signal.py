"""The stop signal: on SIGTERM (sent by clusters before they take a machine) or Ctrl-C a run saves and stops.

Between two steps a run can save and stop in order (StopSignal). Before and after training there is nothing to save:
there SIGTERM ends the work where it stands, and what is half done is cleaned up (StopAtOnce).
"""

import os
import signal
import threading

import torch
from transformers import TrainerCallback


class StopSignal(TrainerCallback):
    """On the first SIGTERM or SIGINT the run saves and stops after the current step; a second one kills it.

    `received` is the signal's number n; the process exits with 128 + n, so a scheduler sees that the run is unfinished.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, accelerator):
        self.accelerator, self.received, self._previous = accelerator, None, {}

    def on_train_begin(self, args, state, control, **kwargs):
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def _handle(self, number, frame):
        self.received = number
        self._restore()

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_step_end(self, args, state, control, **kwargs):
        if self._agreed(args, state) and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def _agreed(self, args, state) -> bool:
        """Whether any process received a signal: all must stop after the same step, or others wait for it forever."""
        if args.world_size == 1:
            return self.received is not None
        # On an accelerator the exchange makes the host wait, so it only happens at steps that are logged.
        if args.device.type != "cpu" and state.global_step % max(1, int(args.logging_steps)) != 0:
            return False
        flag = torch.tensor(self.received or 0, device=args.device)
        number = int(self.accelerator.gather(flag.reshape(1)).max().item())
        self.received = number or None
        return bool(number)

    def on_train_end(self, args, state, control, **kwargs):
        self._restore()


class Stopped(BaseException):
    """SIGTERM has ended what was going on. No Exception, which somebody on the way might take for a failure."""


class StopAtOnce:
    """A context: in its block the first SIGTERM raises Stopped where the program stands, the next one kills.

    While StopSignal handles the signals, it does so alone. Only the main process gets one with `active`: the others may
    be waiting for it in a call that no Python handler interrupts, and just end. `received` is the signal's number.
    """

    def __init__(self, active: bool):
        self.active = active and threading.current_thread() is threading.main_thread()
        self.received = self._previous = None

    def __enter__(self):
        if self.active:
            self.process, self._previous = os.getpid(), signal.signal(signal.SIGTERM, self._handle)
        return self

    def _handle(self, number, frame):
        if os.getpid() != self.process:  # a worker of a data loader, which has inherited the handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.received = number
        signal.signal(number, self._previous)
        raise Stopped

    def __exit__(self, *error):
        if self.active and self.received is None:
            signal.signal(signal.SIGTERM, self._previous)
