"""Two processes have the gradients of one (DistributedDataParallel on gloo, a row each)."""

import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

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
        children = [fork(Path(folder), rank, model, batch) for rank in (0, 1)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            raise RuntimeError((Path(folder) / f"{codes.index(max(codes))}.error").read_text(encoding="utf-8"))
        got = load_file(Path(folder) / "gradients.safetensors")
    reached = {name: x for name, x in expected.items() if name in got or x.any()}  # DDP leaves others at zero
    yield subject.compared_gradients("a row on each of two processes", got, reached)


def fork(folder: Path, rank: int, model, batch: dict) -> int:
    """The number of a child that computes the gradients of its row; the first writes those of both."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch advises about the wrapper
        torch.set_num_threads(1)  # the threads of the parent are gone
        gradients = shared_gradients(folder, rank, model, {name: x[rank : rank + 1] for name, x in batch.items()})
        if rank == 0:
            save_file({name: x.contiguous() for name, x in gradients.items()}, folder / "gradients.safetensors")
        code = 0
    except BaseException as error:
        (folder / f"{rank}.error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    finally:
        os._exit(code)


def shared_gradients(folder: Path, rank: int, model, batch: dict) -> dict[str, torch.Tensor]:
    """The mean gradients of both processes."""
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    wait = timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=wait)
    parallel = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    model.zero_grad()
    parallel(**batch).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
