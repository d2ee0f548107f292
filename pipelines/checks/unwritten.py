"""Fills uninitialised memory with nan, so that a weight or buffer that was never set shows."""

import contextlib

import torch
from torch.utils._device import _device_constructors

from ..patches import replaced


@contextlib.contextmanager
def unwritten_is_nan():
    """Let torch.empty and empty_like return nan on the CPU; transformers allocates weights with them."""
    # torch caches which functions `with torch.device("meta")` intercepts. If the first call came inside this context,
    # the cache would hold the functions below, and later models would be allocated on the CPU instead of meta.
    _device_constructors()

    def filling(original):
        def make(*args, **kwargs):
            out = original(*args, **kwargs)
            if out.is_floating_point() and out.device.type == "cpu":
                out.fill_(float("nan"))
            return out

        return make

    with replaced(torch, empty=filling(torch.empty), empty_like=filling(torch.empty_like)):
        yield
