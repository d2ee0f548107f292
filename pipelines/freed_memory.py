"""Memory of the host that batches of ever new sizes would fill up on a CPU.

Two things grew, by gigabytes in a few hundred steps: caches of compiled products, one for each number of rows that was
ever multiplied, and blocks that Linux's C library keeps after they are freed, because none fits the next batch.
"""

import ctypes
import os
import time

SECONDS = 10  # between two times: giving back takes up to 0.1 s
_last = time.monotonic()


def bound_caches() -> None:
    """Keep products of 256 sizes in this process and its children, instead of 1,024, unless the user says how many.

    A step of a small decoder has more than 128: with 64, quickstart trains 12 % slower, with 256 as fast as with 1,024.

    oneDNN reads the first variable and torch's layer above it the second, at the first product.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "256")


def give_back(device_type: str = "cpu") -> None:
    """Return freed memory to the system, where the C library can (glibc): to be called after each batch on a CPU."""
    global _last
    if device_type == "cpu" and time.monotonic() - _last >= SECONDS:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
        if trim is not None:
            trim(0)
        _last = time.monotonic()
