"""Memory that nobody has written to, filled with nan, so that a forgotten weight or buffer shows."""

import contextlib

import torch
from torch.utils._device import _device_constructors


@contextlib.contextmanager
def unwritten_is_nan():
    """Let torch.empty and empty_like give nan on the CPU; transformers allocates by them what it loads or draws."""
    # torch caches which functions `with torch.device("meta")` catches. Were the first call to fall into this context,
    # the cache would hold the functions below instead of the real ones, and later models would be allocated for real.
    _device_constructors()
    originals = {name: getattr(torch, name) for name in ("empty", "empty_like")}

    def filling(original):
        def make(*args, **kwargs):
            out = original(*args, **kwargs)
            if out.is_floating_point() and out.device.type == "cpu":
                out.fill_(float("nan"))
            return out

        return make

    for name, original in originals.items():
        setattr(torch, name, filling(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)
