"""Atomic writes: a file or folder is written under another name and then renamed, so it is complete or absent."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_file(path: Path) -> None:
    """Ask the system to put the file (or folder) on the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; the file that the block writes there replaces `path` at its end.

    A reader sees the old or the new content, never a part. Where the block fails, `path` is left as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new content, never a part."""
    with replaced_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def make_sibling_folder(target: Path) -> Path:
    """An empty hidden folder beside `target`, to be filled and then renamed to it."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".tmp", dir=target.parent))
    folder.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner alone
    return folder


def share_files(files: Iterable[Path]) -> None:
    """Give saved files the mode that the umask wants: safetensors makes its own for their owner alone."""
    mode = 0o666 & ~_umask()
    for file in files:
        file.chmod(mode)


def _umask() -> int:
    umask = os.umask(0)  # the only way to read it is to set it
    os.umask(umask)
    return umask
