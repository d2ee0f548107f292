"""The cache: folders of prepared data that are complete or absent."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from .atomic import make_sibling_folder, sync_file


def cache_folder(chosen: str | None = None) -> Path:
    """Where prepared data is kept: `chosen` (data.cache_dir), $ANYFORMER_CACHE or ~/.cache/anyformer."""
    return Path(chosen or os.environ.get("ANYFORMER_CACHE") or "~/.cache/anyformer").expanduser()


def cached_folder(
    root: Path, kind: str, key: str, build: Callable[[Path], None], is_complete: Callable[[Path], bool]
) -> Path:
    """The folder root/kind/key. Where it is missing, `build` fills a temporary folder, which is then renamed to it.

    A killed run leaves at most a temporary folder, which is never read. Several processes may build the same entry at
    once: the first one to finish wins, and all get equal content.
    Raises UserError where the cache cannot be written.
    """
    target = root / kind / key
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = make_sibling_folder(target)
    except OSError as error:
        raise _unwritable(root, error) from None
    try:
        build(work)
        for path in work.iterdir():
            sync_file(path)
        _rename(work, target, is_complete)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise _unwritable(root, error) from None
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _rename(work: Path, target: Path, is_complete: Callable[[Path], bool]) -> None:
    if target.exists() and not is_complete(target):  # damaged, for example by a disk error
        damaged = make_sibling_folder(target)
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


def sha(value: Any) -> str:
    """32 hexadecimal digits that identify a JSON value: keys of entries, fingerprints of data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
