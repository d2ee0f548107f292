"""The stall watchdog ends a run that makes no progress, and says where it stands.

A process may wait forever: for a file system, a data loader, or a process that waits itself. Every process has its own
watchdog, and where one stalls all wait for it, so all of them end.
"""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from transformers import TrainerCallback

from ...storage.checkpoints import list_checkpoints
from ..engines.launch import tell_launcher

EXIT_STALLED = 75  # EX_TEMPFAIL of sysexits.h: the same command may go on
GRACE_SECONDS = 60  # for writing down where the run stands


class StallWatchdog(TrainerCallback):
    """Watches a training from a thread of its own: steps, batches of evaluations, checkpoints.

    Before and after training nothing is watched: preparing data and measuring the finished model have no steps.

    Args:
        output_dir: folder of the run; the stacks are written into it.
        minutes: without progress until the run is ended; None: nothing is watched.
        rank: of this process.
    """

    def __init__(self, output_dir: str | Path, minutes: float | None, rank: int = 0):
        self.folder, self.minutes, self.rank = Path(output_dir), minutes, rank
        self.interval = None if minutes is None else min(5.0, minutes * 6)  # seconds; a tenth of the limit
        self.step, self.doing, self._beats = 0, "training began", 0
        self._seen, self._silent = 0, 0.0  # beats, and seconds since the last one
        self._ended, self._thread = threading.Event(), None

    # ---- signs of life

    def beat(self, state, doing: str) -> None:
        self.step, self.doing, self._beats = state.global_step, doing, self._beats + 1

    def on_train_begin(self, args, state, control, **kwargs):
        self.beat(state, "training began")
        if self.minutes is not None and self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._watch, name="stall watchdog", daemon=True)
            self._thread.start()

    def on_step_end(self, args, state, control, **kwargs):
        self.beat(state, "a step ended")

    def on_substep_end(self, args, state, control, **kwargs):
        self.beat(state, "a micro-batch ended")

    def on_prediction_step(self, args, state, control, **kwargs):
        self.beat(state, "a batch was evaluated")

    def on_evaluate(self, args, state, control, **kwargs):
        self.beat(state, "an evaluation ended")

    def on_save(self, args, state, control, **kwargs):
        self.beat(state, "a checkpoint was saved")

    def close(self) -> None:
        """Watch no more: training has ended, in whatever way."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # ---- the watch

    def _watch(self) -> None:
        while not self._ended.wait(self.interval):
            if self.is_stalled():
                self.end()

    def is_stalled(self) -> bool:
        """Whether nothing has happened for too long; asked every `interval` seconds.

        Waits are counted and no clock is read: a process that was stopped, or a machine that slept, was not silent.
        """
        self._silent = self._silent + self.interval if self._seen == self._beats else 0.0
        self._seen = self._beats
        return self._silent >= self.minutes * 60

    def end(self) -> None:
        """Write the stacks of all threads to a file and to the error stream, and end this process."""
        # It may be the file system of the run's folder that does not answer.
        last = threading.Timer(GRACE_SECONDS, os._exit, [EXIT_STALLED])
        last.daemon = True
        last.start()
        if sys.__stderr__ is not None:  # there is none in some notebooks
            faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        file = self.folder / f"stall-rank{self.rank}.txt"
        with file.open("w", encoding="utf-8") as out:
            out.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {self.doing}, step {self.step}; then nothing\n\n")
            out.flush()
            faulthandler.dump_traceback(out, all_threads=True)
        sentence = self.sentence(file)
        if not tell_launcher(sentence):
            print(f"anyformer: {sentence}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(EXIT_STALLED)  # the main thread cannot be asked: it may wait in a call that nothing interrupts

    def sentence(self, file: Path) -> str:
        found = list_checkpoints(self.folder)
        there = (
            f"{found[0].name} is complete, and the same command goes on from it" if found else "no checkpoint is there"
        )
        return (
            f"no progress for {self.minutes:g} minutes (training.stall_minutes) since {self.doing} (step {self.step}); "
            f"{file} says where each thread stands; {there}"
        )
