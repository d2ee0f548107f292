"""`training.async_save`: checkpoints are written beside the training, from copies in the host's memory.

torch.distributed.checkpoint has an async_save, which writes a format of its own; what Trainer resumes from are
safetensors and optimizer.pt, so its own writers run here, on a thread, with copies of what they write. The folder is
the staging folder of any checkpoint, and gets its name when all is in it: a process killed before leaves nothing of it.
"""

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import torch
from torch.utils._pytree import tree_map_only

from ..errors import UserError
from ..recipes.schema import TrainingSection
from .engines.asked import splitter


def on_host(values):
    """Copies of all tensors in nested dicts and lists, in the host's memory; nothing that changes them is seen."""
    return tree_map_only(torch.Tensor, lambda x: x.detach().to("cpu", copy=True), values)


def check_async_save(section: TrainingSection) -> None:
    """Raise UserError for engines that write their parts of a checkpoint together."""
    name = splitter(section)
    if section.async_save and name is not None:
        raise UserError(
            f"training.async_save=true copies whole weights and optimizer states, but {name} splits them and writes "
            f"its parts in all processes at once; set it to false"
        )


def twin_of(trainer):
    """A trainer that can save beside this one: its model has a config of its own, and it writes at once."""
    twin = copy.copy(trainer)
    twin.model, twin.writes = copy.copy(trainer.model), CheckpointWrites(beside=False)
    twin.model.config = copy.deepcopy(trainer.model.config)
    return twin


class CheckpointWrites:
    """The writes of a checkpoint: made at once, or with `beside` all together on a thread, one checkpoint at a time.

    What goes wrong on the thread is raised by the next `wait`.
    """

    def __init__(self, beside: bool):
        self.beside = beside
        self._writes: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def add(self, write: Callable[[], None]) -> None:
        """A write of the checkpoint that is being staged; where it is made later, of copies alone."""
        if self.beside:
            self._writes.append(write)
        else:
            write()

    def publish(self, commit: Callable[[], None], cleaned_up: AbstractContextManager) -> None:
        """Make the checkpoint visible once all is written. cleaned_up: around what is done on the thread."""
        if not self.beside:
            commit()
            return
        writes, self._writes = [*self._writes, commit], []
        # A daemon: a second signal ends the process at once.
        self._thread = threading.Thread(target=self._run, args=(writes, cleaned_up), name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self, writes, cleaned_up) -> None:
        try:
            with cleaned_up:
                for write in writes:
                    write()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Return when nothing is being written. Raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait after another error, which is the one to be told."""
        self._writes = []
        with suppress(Exception):
            self.wait()
