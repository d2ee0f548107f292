"""Checksums of the files of a folder: written once, compared before the files are trusted.

CRC-32 finds accidents, at 1.9 GB/s on one core of a cloud machine (SHA-256: 0.56). The files of folders above
ALWAYS are read again only if sizes, inodes or times of change show that they were touched since the last comparison.
"""

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..manifest import sha256, state_of
from .atomic import write_atomically
from .checkpoints import first_difference

CHECKSUMS = "checksums.json"  # {file: [bytes, CRC-32]}
COMPARED = "compared.json"  # {file: its state when it was last compared}
ALWAYS = 2**30  # bytes; smaller folders are read at each start


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files of a folder (not of folders in it) into it."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    entries = {path.name: [path.stat().st_size, crc32(path)] for path in files}
    (folder / CHECKSUMS).write_text(json.dumps(entries))


def find_change(folder: Path) -> str | None:
    """The first difference between a folder's files and their checksums, in words; None where nothing has changed.

    Raises PermissionError for a file that this user may not read, which is no damage.
    """
    try:
        stored = json.loads((folder / CHECKSUMS).read_text())
        entries = {name: (int(size), int(checksum)) for name, (size, checksum) in stored.items()}
    except FileNotFoundError:
        return "it has no checksums"
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, AttributeError):
        return f"{CHECKSUMS} cannot be read"
    try:
        is_large = sum(size for size, _ in entries.values()) > ALWAYS
        states = {name: state_of(folder / name) for name in entries} if is_large else None
        if is_large and states == _compared(folder):
            return None
        difference = first_difference(folder, entries, crc32)
    except PermissionError:
        raise
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read ({error.strerror})"
    if is_large and difference is None:
        with contextlib.suppress(OSError):  # files of a read-only cache are compared at each start
            write_atomically(folder / COMPARED, json.dumps(states))
    return difference


def crc32(path: Path) -> int:
    """The CRC-32 of a file's bytes."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


States = dict[Path, list[int] | None]  # file -> its size, times of change and inode; None: it is not there
_watching: ContextVar[tuple[States, ...]] = ContextVar("watching", default=())


@contextlib.contextmanager
def hashed_files() -> Iterator[States]:
    """Yields the files whose `content_hash` the block computes, each with its state before it was read."""
    states: States = {}
    token = _watching.set((*_watching.get(), states))
    try:
        yield states
    finally:
        _watching.reset(token)
        contents.write()


def check_unchanged(states: States) -> None:
    """Raise UserError for a file that has changed since its hash was asked for: other content may have been read.

    Without this, data made of the new content could lie in the cache under the fingerprint of the old content.
    """
    for path, state in states.items():
        if _content_state(path) != state:
            raise UserError(f"data: {path} was changed while it was read; start again once it is written.")


def content_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, which are read again only where the file was touched."""
    state = _content_state(path)
    for states in _watching.get():
        states[path] = state
    return contents.value(path, "sha256", sha256)


def read_value(file: Path) -> Any:
    """The plain data that `write_value` has written; None where the file is missing or damaged."""
    try:
        checksum, text = file.read_text().split(" ", 1)
        return json.loads(text) if int(checksum) == zlib.crc32(text.encode()) else None
    except (OSError, ValueError):
        return None


def write_value(file: Path, value: Any) -> None:
    """Write plain data with its CRC-32."""
    text = json.dumps(value)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, f"{zlib.crc32(text.encode())} {text}")


class Contents:
    """Values that depend on a file's bytes alone, such as its hash; the bytes are read again where it was touched.

    They are kept beside the file's state, in one JSON file for each folder, {name: [state, {what: value}]}, so that the
    next process reads none of the files. `write` is called at the end of `hashed_files`.
    """

    def __init__(self):
        self.kept_in: Path | None = None  # a folder; None: values are known to this process alone
        self._known: dict[Path, dict[str, list]] = {}
        self._new: dict[Path, dict[str, list]] = {}

    def value(self, path: Path, what: str, compute: Callable[[Path], Any]) -> Any:
        """compute(path), which is plain data, or what it was when the file was in the same state."""
        path, state, now = path.absolute(), _content_state(path), time.time_ns()
        file = (self.kept_in or Path()) / f"{hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:32]}.json"
        if file not in self._known:
            self._known[file] = self._read(file)
        entry = self._known[file].get(path.name)
        if state is None or entry is None or entry[0] != state:
            entry = self._known[file][path.name] = [state, {}]
        if what not in entry[1]:
            entry[1][what] = compute(path)
            # A second change within one tick of the file system's clock would leave the same state.
            if state is not None and now - state[2] > (2 * 10**7 if state[2] % 10**9 else 2 * 10**9):
                self._new.setdefault(file, {})[path.name] = entry
        return entry[1][what]

    def _read(self, file: Path) -> dict[str, list]:
        return (read_value(file) if self.kept_in else None) or {}

    def write(self) -> None:
        """Add what is new to the files; another process may have added to them, too."""
        while self._new:
            file, entries = self._new.popitem()
            if self.kept_in is not None:
                with contextlib.suppress(OSError):  # in a read-only cache nothing is kept
                    write_value(file, self._read(file) | entries)


contents = Contents()


def _content_state(path: Path) -> list[int] | None:
    try:
        return state_of(path)
    except OSError:
        return None


def _compared(folder: Path) -> dict | None:
    try:
        return json.loads((folder / COMPARED).read_text())
    except (OSError, ValueError):
        return None
