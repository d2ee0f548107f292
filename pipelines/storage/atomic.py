"""Atomic writes: a file or folder is renamed when it is written, so it is complete or absent; full disks."""

import errno
import glob
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last of `ulimit -f`


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


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def make_sibling_folder(target: Path, owner: str = "") -> Path:
    """An empty hidden folder beside `target`, to be filled and then renamed to it. owner: a part of its name."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-{owner}", suffix=".tmp", dir=target.parent))
    folder.chmod(0o777 & ~_umask())  # only the owner can enter folders that mkdtemp makes
    return folder


def destination_folder(destination: str | os.PathLike, what: str = "DST") -> Path:
    """The folder to write; raises UserError where it is a file or not empty. what: the argument that names it."""
    path = Path(destination).expanduser()
    if path.is_dir():
        if any(path.iterdir()):
            raise UserError(f"{what}={destination} is not empty; name a folder that does not exist yet")
    elif path.exists() or path.is_symlink():
        raise UserError(f"{what}={destination} is a file; name a folder that does not exist yet")
    return path


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """Yield a hidden folder, renamed to `destination` at the block's end; it is removed where the block fails."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    host = re.sub(r"\W", "_", socket.gethostname())
    for left in destination.parent.glob(f".{glob.escape(destination.name)}-of-{host}-*.tmp"):
        if not _is_running(int(left.name.split("-of-")[-1].split("-")[1])):  # killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
    aside = make_sibling_folder(destination, f"of-{host}-{os.getpid()}-")
    try:
        yield aside
        os.replace(aside, destination)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def share_files(files: Iterable[Path]) -> None:
    """Give saved files the mode that the umask asks for: safetensors lets only their owner read its files."""
    mode = 0o666 & ~_umask()
    for file in files:
        file.chmod(mode)


def _umask() -> int:
    umask = os.umask(0)  # the only way to read it is to set it
    os.umask(umask)
    return umask


def has_no_space(error: BaseException | None) -> bool:
    """Whether an error, or one that it follows from, says that the disk is full."""
    while error is not None:
        if getattr(error, "errno", None) in FULL or any(f"os error {number})" in str(error) for number in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_disk_full(error: BaseException | None, folder: Path) -> bool:
    """Whether an error while writing to `folder` came from a full disk.

    torch's, safetensors' and tokenizers' writers do not always pass the OSError on, so the free space is checked, too.
    """
    if has_no_space(error):
        return True
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free < 1 << 20
