"""The stop signal: on SIGTERM (sent by clusters before they take a machine) or Ctrl-C a run saves and stops."""

import signal

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
