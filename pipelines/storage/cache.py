"""Folders of prepared data that are complete or absent."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError


def cache_folder(chosen: str | None = None) -> Path:
    """Where prepared data is kept: `chosen` (data.cache_dir), $ANYFORMER_CACHE or ~/.cache/anyformer."""
    return Path(chosen or os.environ.get("ANYFORMER_CACHE") or "~/.cache/anyformer").expanduser()


def cached_folder(
    root: Path, kind: str, key: str, build: Callable[[Path], None], is_complete: Callable[[Path], bool]
) -> Path:
    """The folder root/kind/key. Where it is missing, `build` fills a temporary folder that then gets its name.

    A run that is killed leaves at most a temporary folder, which is never read. Several processes may build the same
    entry at once: the first one to finish wins, and all get equal content.
    Raises UserError where the cache cannot be written.
    """
    target = root / kind / key
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=target.parent))
    except OSError as error:
        raise _unwritable(root, error) from None
    try:
        build(work)
        _finish(work)
        _rename(work, target, is_complete)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise _unwritable(root, error) from None
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _finish(work: Path) -> None:
    """Readable by whom the umask allows (mkdtemp makes it private), and on the disk before it gets its name."""
    umask = os.umask(0)
    os.umask(umask)
    work.chmod(0o777 & ~umask)
    for path in work.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _rename(work: Path, target: Path, is_complete: Callable[[Path], bool]) -> None:
    if target.exists() and not is_complete(target):  # damaged, say by a disk error: out of the way
        damaged = Path(tempfile.mkdtemp(prefix=f".{target.name}-damaged-", dir=target.parent))
        os.rename(target, damaged / target.name)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        os.rename(work, target)
    except OSError:
        if not is_complete(target):  # otherwise another process was faster
            raise


def _unwritable(root: Path, error: OSError) -> UserError:
    return UserError(
        f"data.cache_dir={str(root)!r} cannot be written ({error.strerror}); set it to a folder with space."
    )
