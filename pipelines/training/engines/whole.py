"""Engines whose processes each hold the whole model: one process, and torch's DistributedDataParallel."""

from .engine import Engine


class OneProcess(Engine):
    """Nothing is shared."""

    whole = True


class DDP(Engine):
    """Each process has the model, and rows of its own."""

    name = "DDP"
    whole = True
    wrappers = ("DistributedDataParallel",)
