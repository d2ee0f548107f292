"""The lock of a folder: one process at a time writes into it."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"
HELD = (errno.EACCES, errno.EAGAIN)


class FolderInUse(Exception):
    """Another process holds the folder's lock; the message says which, where and since when."""


@contextmanager
def folder_lock(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the lock of an existing folder for the block; raise FolderInUse where another process holds it.

    The lock is the system's record lock on the file `name`: it ends with its process, however that ends, and forked
    workers do not inherit it. So the lock of a killed process is stale at once. The text in the file names the holder.
    On a file system without locks no process is kept out.
    """
    path, descriptor = folder / name, _open_locked(folder / name)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{socket.gethostname()} {os.getpid()} {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked: so no other process holds a lock on the file that is deleted
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in HELD:  # the file system has no locks
                return descriptor
            host, process, since = _holder(descriptor)
            os.close(descriptor)
            raise FolderInUse(f"process {process} on {host} (since {since})") from None
        if _is_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # its holder ended, and deleted the file, between the two calls


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> tuple[str, str, str]:
    """(host, process, time) from the lock's file; unknown if its holder has not written them yet."""
    words = os.pread(descriptor, 1000, 0).decode(errors="replace").split(" ", 2)
    return tuple(words) if len(words) == 3 else ("an unknown host", "unknown", "a moment ago")
