"""The stall watchdog ends a run that makes no progress, and writes where each thread is.

A process may wait forever: for a file system, a data loader, or another process that waits. Every process has its own
watchdog; when one process stalls, the others wait for it, so all of them end.
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

EXIT_STALLED = 75  # EX_TEMPFAIL of sysexits.h: the same command may resume the run
GRACE_SECONDS = 60  # for writing the stacks


def sign_of(doing: str):
    """A callback's method that beats."""
    return lambda self, args, state, control, **kwargs: self.beat(state, doing)


class StallWatchdog(TrainerCallback):
    """Watches from its own thread whether training makes steps, evaluates batches or saves checkpoints.

    Nothing is watched before and after training: preparing data and evaluating the finished model have no steps.

    Args:
        output_dir: folder of the run; the stacks are written into it.
        minutes: the run ends after this time without progress; None: nothing is watched.
        rank: of this process.
    """

    def __init__(self, output_dir: str | Path, minutes: float | None, rank: int = 0):
        self.folder, self.minutes, self.rank = Path(output_dir), minutes, rank
        self.interval = None if minutes is None else min(5.0, minutes * 6)  # seconds; a tenth of the limit
        self.step, self.doing, self._beats = 0, "training began", 0
        self._seen, self._silent = 0, 0.0  # beats at the last look, and seconds without a new one
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

    on_step_end, on_substep_end = sign_of("a step ended"), sign_of("a micro-batch ended")
    on_prediction_step, on_evaluate = sign_of("a batch was evaluated"), sign_of("an evaluation ended")
    on_save = sign_of("a checkpoint was saved")

    def close(self) -> None:
        """Stop watching, however training has ended."""
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
        """Whether nothing has happened for too long; called every `interval` seconds.

        It counts its own calls instead of reading a clock, so that time in which the process was stopped or the machine
        slept does not count.
        """
        self._silent = self._silent + self.interval if self._seen == self._beats else 0.0
        self._seen = self._beats
        return self._silent >= self.minutes * 60

    def end(self) -> None:
        """Write the stacks of all threads to a file and to the error stream, and end this process."""
        # A timer ends the process even if the file system of the run's folder does not respond.
        timer = threading.Timer(GRACE_SECONDS, os._exit, [EXIT_STALLED])
        timer.daemon = True
        timer.start()
        if sys.__stderr__ is not None:  # it is None in some notebooks
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
        os._exit(EXIT_STALLED)  # the main thread may wait in a call that nothing interrupts

    def sentence(self, file: Path) -> str:
        saved = list_checkpoints(self.folder)
        resume = (
            f"{saved[0].name} is complete, and the same command goes on from it" if saved else "no checkpoint is there"
        )
        return (
            f"no progress for {self.minutes:g} minutes (training.stall_minutes) since {self.doing} (step {self.step}); "
            f"{file} says where each thread stands; {resume}"
        )
