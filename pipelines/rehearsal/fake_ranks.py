"""One process that takes itself for the first of many: a process group of any size that sends nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState
from torch.testing._internal.distributed.fake_pg import FakeStore

# Machines with GPUs rehearse on the CPU, too. transformers loads weights in threads, and fake tensors stand one thread.
ALONE = {"CUDA_VISIBLE_DEVICES": "", "HF_DEACTIVATE_ASYNC_LOAD": "1", "OMP_NUM_THREADS": "1"}
OF_RANKS = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@contextmanager
def fake_ranks(count: int) -> Iterator[None]:
    """A block in which this process is rank 0 of `count`; as if alone where that is 1."""
    sizes = {name: str(count) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    changed = ALONE | (OF_RANKS | sizes if count > 1 else {})
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        if count > 1:
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
        yield
    finally:
        if count > 1:
            dist.destroy_process_group()
        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
