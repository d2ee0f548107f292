"""Freed memory that stays with the process while it computes on a CPU.

A step frees the blocks of its activations and gradients, and the next one asks for the same. The C library of Linux
returns large blocks to the system, which fills each page anew with zeros: 35,000 pages and 8 % of the time in a step of
transformers' LLaMA (10M parameters, 1,024 tokens), 9,600 pages and 3.6 % in one of ours.

Batches of many lengths ask for ever other sizes, which the holes between blocks that stay do not fit. A training on
reviews (16 rows of up to 512 tokens a step) held 2.0 GB after its first step and 5.3 after 3,700. What is free is
therefore returned, all at once, where the process holds much more than a step takes. A like training stayed below 2.4
GB for 200 steps, with 14 returns that cost 1 to 2 % of the time.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from transformers import TrainerCallback

# Parameters of glibc's mallopt(3): how much free memory at the heap's end is returned to the system (-1: none), and how
# many blocks may lie outside of the heap, which are returned as soon as they are freed.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
KEEPS = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}
# The threshold that glibc itself reaches in a process that frees large blocks, and its own number of blocks.
RETURNS = {TRIM_THRESHOLD: 64 << 20, MMAP_MAX: 65536}
OF_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")
MOST = 1.5  # times what a step takes: more is not kept
_kept = False  # as mallopt, of the whole process


@contextmanager
def freed_memory_kept(device) -> Iterator[bool]:
    """In the block, memory that is freed stays with the process; afterwards it is returned to the system.

    Yields whether it stays: on a CPU under glibc, where no variable of the environment sets these limits. On a GPU a
    step takes no memory of the host, and the weights that were read there would stay for nothing.
    """
    global _kept
    kept = device.type == "cpu" and not any(name in os.environ for name in OF_USERS) and _set(KEEPS)
    _kept = kept
    try:
        yield kept
    finally:
        _kept = False
        if kept:
            _set(RETURNS)
            _return_free_memory()


class FreedMemoryLimit(TrainerCallback):
    """Returns free memory to the system after a step or a batch of an evaluation, where too much of it has been kept.

    Without `freed_memory_kept` it does nothing.
    """

    def __init__(self):
        self.of_step = 0  # bytes held after a step that began without free memory: the most so far
        self._returned = False  # before this step

    def look(self, held: int) -> None:
        """A step has ended, and the process holds so many bytes."""
        if self._returned:
            self.of_step, self._returned = max(self.of_step, held), False
        elif held > MOST * self.of_step:
            _return_free_memory()
            self._returned = True

    def on_step_end(self, args, state, control, **kwargs):
        if _kept:
            self.look(held_bytes())

    on_prediction_step = on_step_end


def held_bytes() -> int:
    """Memory that this process holds by itself: without files that it reads in place."""
    with open("/proc/self/statm") as file:
        resident, of_files = file.read().split()[1:3]
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")


def _return_free_memory() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _set(limits: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library: musl
        return False
    return all([mallopt(name, value) for name, value in limits.items()])
