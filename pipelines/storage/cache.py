"""The cache: folders of prepared data that are complete and unchanged, or absent."""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..manifest import MANIFEST, find_change, manifest_of, sha, sha256
from .atomic import is_disk_full, make_sibling_folder, sync_file
from .contents import States, check_unchanged, contents, hashed_files, read_value, write_value

ALWAYS = 2**30  # bytes; smaller files are hashed at each start
_ABANDONED = 24 * 3600  # seconds without a write after which a temporary folder counts as abandoned


def cached_folder(root: Path, kind: str, key: str, build: Callable[[Path], None], files: States | None = None) -> Path:
    """The folder root/kind/key. Where it is missing, `build` fills a temporary folder, which is then renamed to it.

    The entry has a manifest, which is compared before it is used. A changed entry is set aside and built again, and one
    line on standard error says so. files: the files that `build` reads, with their states before they were hashed for
    the key.

    A killed run leaves at most a temporary folder, which is never read and is removed after a day. Several processes
    may build the same entry at once: the first one to finish wins, and all get equal content.
    Raises UserError where the cache cannot be written, and where one of `files` has changed meanwhile.
    """
    target = root / kind / key
    _remove_abandoned(target.parent)

    is_there, fault = _looked_at(root, target)
    if is_there and fault is None:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = make_sibling_folder(target)
        if is_there:
            _set_aside(target, fault)
    except FileNotFoundError:  # another process has removed the entries' folder (tokenization.py)
        raise
    except OSError as error:
        raise _unwritable(root, error.strerror) from None
    try:
        build(work)
        check_unchanged(files or {})
        (work / MANIFEST).write_text(manifest_of(work, sorted(path for path in work.iterdir() if path.is_file())))
        for path in work.iterdir():
            sync_file(path)
        _rename(work, target)
    except UserError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception when it cannot write
        if is_disk_full(error, work):
            raise _unwritable(root, os.strerror(errno.ENOSPC)) from None
        if getattr(error, "errno", None) == errno.EROFS:
            raise _unwritable(root, error.strerror) from None
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def kept_value(identity: Callable[[], Any], compute: Callable[[], Any]) -> Any:
    """compute(), plain data, which follows from identity() alone; kept where the contents of files are.

    Raises UserError where a file that identity() hashed has changed meanwhile.
    """
    if contents.kept_in is None:
        return compute()
    with hashed_files() as files:
        file = contents.kept_in / f"of-{sha(identity())}.json"
    kept = read_value(file)
    if kept is None:
        kept = {"value": compute()}
        check_unchanged(files)
        with suppress(OSError):  # in a read-only cache nothing is kept
            write_value(file, kept)
    return kept["value"]


def _looked_at(root: Path, target: Path) -> tuple[bool, str | None]:
    """Whether an entry is there, and what is wrong with it."""
    try:
        is_there = target.exists()
        return is_there, _fault_of(target) if is_there else None
    except PermissionError as error:
        raise UserError(
            f"data.cache_dir={str(root)!r} has {error.filename} of another user, who lets nobody else read it; ask for "
            f"chmod -R a+rX, or set another folder."
        ) from None


def is_complete(folder: Path) -> bool:
    """Whether an entry is there, whole and unchanged."""
    return folder.exists() and _fault_of(folder) is None


def _fault_of(entry: Path) -> str | None:
    """What of an entry has changed since it was made, in words; large files are hashed once in each state."""

    def hash_file(file: Path) -> str:
        return contents.value(file, "sha256", sha256) if file.stat().st_size > ALWAYS else sha256(file)

    fault = find_change(entry, hash_file)
    contents.write()
    return fault


def _set_aside(target: Path, fault: str) -> None:
    """Move a damaged entry out of the way. It is kept for a day: other processes may be reading it."""
    aside = make_sibling_folder(target)
    try:
        os.rename(target, aside / target.name)
    except FileNotFoundError:  # another process has moved it since
        return
    print(f"anyformer: {target} is damaged ({fault}); set aside in {aside.name} and made again", file=sys.stderr)


def _remove_abandoned(parent: Path) -> None:
    """Remove temporary folders without a write for a day: those of killed runs, and damaged entries."""
    for folder in parent.glob(".*.tmp"):
        try:
            newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
        except OSError:  # it is being renamed or removed
            continue
        if time.time() - newest > _ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)


def _rename(work: Path, target: Path) -> None:
    try:
        os.rename(work, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not target.exists():  # another process was faster, and it or a third one has moved the entry away since
            _rename(work, target)
        elif _fault_of(target) is not None:
            raise


def remove_at_once(folder: Path, beside: Path) -> None:
    """Remove a folder that other processes may use, after moving it beside an entry: they see all of it or nothing."""
    if folder.exists():
        aside = make_sibling_folder(beside)
        with suppress(OSError):
            os.rename(folder, aside / "removed")
        for remains in (aside, folder):
            shutil.rmtree(remains, ignore_errors=True)


def _unwritable(root: Path, reason: str) -> UserError:
    return UserError(f"data.cache_dir={str(root)!r} cannot be written ({reason}); set a folder of yours with space.")
