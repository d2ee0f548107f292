"""Two processes have the gradients of one (DistributedDataParallel on gloo, a row each)."""

import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.multiprocessing import ProcessRaisedException, start_processes

from ..findings import Finding
from ..subject import Subject, gradients_of
from .accumulation_law import even

NEEDS = ("labels",)


def unclaimed(subject: Subject) -> str:
    if not hasattr(os, "fork"):
        return "this system does not fork processes"
    return "" if subject.device.type == "cpu" else "processes are forked on the CPU alone"


def ask(subject: Subject) -> Iterator[Finding]:
    batch, model = even(subject, subject.labelled(2)), subject.fresh()
    expected = gradients_of(model, model(**batch).loss)
    with tempfile.TemporaryDirectory() as folder:
        try:
            start_processes(share_gradients, (Path(folder), model, batch), nprocs=2, start_method="fork")
        except ProcessRaisedException as error:  # its last line is the error of the child
            raise RuntimeError(str(error).strip().splitlines()[-1]) from error
        got = load_file(Path(folder) / "gradients.safetensors")
    reached = {name: x for name, x in expected.items() if name in got or x.any()}  # DDP sets others to zero
    yield subject.compared_gradients("a row on each of two processes", got, reached)


def share_gradients(rank: int, folder: Path, model, batch: dict) -> None:
    """Compute the gradients of one row in this process; rank 0 writes the mean of both processes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides torch's advice on DDP
    torch.set_num_threads(1)  # the parent's threads do not exist after a fork
    store, wait = torch.distributed.FileStore(str(folder / "store"), 2), timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=wait)
    parallel = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    model.zero_grad()
    parallel(**{name: x[rank : rank + 1] for name, x in batch.items()}).loss.backward()
    if rank == 0:
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        save_file({name: x.contiguous() for name, x in gradients.items()}, folder / "gradients.safetensors")
