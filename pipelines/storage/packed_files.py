"""Files that are compressed as a whole, such as corpus.jsonl.zst: known by their suffix. Standard library only."""

import bz2
import errno
import gzip
import lzma
import sys
import zlib
from pathlib import Path
from typing import IO


def _zstd():
    """The module that reads zstd: Python's own from 3.14 on, its backport before."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd


def _open_zstd(path: Path, mode: str) -> IO[bytes]:
    try:
        return _zstd().open(path, mode)
    except ImportError:
        raise OSError(errno.ENOTSUP, "zstd needs a package: pip install backports.zstd") from None


# Suffix -> (name of the compression, what opens such a file).
PACKED = {
    ".gz": ("gzip", gzip.open),
    ".bz2": ("bzip2", bz2.open),
    ".xz": ("xz", lzma.open),
    ".zst": ("zstd", _open_zstd),
}


def packing_of(path: Path) -> str | None:
    """The name of a file's compression; None: it has none."""
    return PACKED[path.suffix.lower()][0] if path.suffix.lower() in PACKED else None


def unpacked_name(name: str) -> str:
    """A file's name in lower case, without the suffix of its compression."""
    name = name.lower()
    return next((name.removesuffix(suffix) for suffix in PACKED if name.endswith(suffix)), name)


def open_packed(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its suffix says that they are packed; a buffered stream.

    Raises OSError where it cannot be opened, also because a package is missing. `is_damage` tells whether an error in
    reading it means that it is damaged.
    """
    return PACKED.get(path.suffix.lower(), ("", open))[1](path, "rb")


def is_damage(error: Exception, path: Path) -> bool:
    """Whether an error says that a compressed file is damaged, rather than that it cannot be read."""
    if packing_of(path) is None:
        return False
    if isinstance(error, OSError):
        return error.errno is None
    modules = [sys.modules.get(name) for name in ("compression.zstd", "backports.zstd")]
    of_zstd = [module.ZstdError for module in modules if module is not None]
    return isinstance(error, (EOFError, zlib.error, lzma.LZMAError, *of_zstd))
