"""SIGTERM (a cluster taking the machine back) and Ctrl-C: finish the step, write a checkpoint, stop."""

import signal

import torch
from transformers import TrainerCallback


class StopSignal(TrainerCallback):
    """On the first SIGTERM or SIGINT the run saves and stops after the current step; a second one acts at once.

    `received` holds the signal's number; a process ends with 128 + it, so that a scheduler knows the run is not done.
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
        """Whether any process was told to stop: all must stop after the same step, or they wait for each other."""
        if args.world_size == 1:
            return self.received is not None
        # On an accelerator the exchange would make the host wait, so it happens with the logging only.
        if args.device.type != "cpu" and state.global_step % max(1, int(args.logging_steps)) != 0:
            return False
        flag = torch.tensor(self.received or 0, device=args.device)
        number = int(self.accelerator.gather(flag.reshape(1)).max().item())
        self.received = number or None
        return bool(number)

    def on_train_end(self, args, state, control, **kwargs):
        self._restore()
