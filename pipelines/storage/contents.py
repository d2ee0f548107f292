"""What follows from the bytes of a file of data, such as their hash: kept by the file's state, for the next process."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..manifest import sha256, state_of
from .atomic import write_atomically

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
        if _state(path) != state:
            raise UserError(f"data: {path} was changed while it was read; start again once it is written.")


def content_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, which are read again only where the file was touched."""
    state = _state(path)
    for states in _watching.get():
        states[path] = state
    return contents.value(path, "sha256", sha256)


def read_value(file: Path) -> Any:
    """The plain data that `write_value` has written; None where the file is missing or damaged."""
    try:
        digest, text = file.read_text().split(" ", 1)
        return json.loads(text) if digest == hashlib.sha256(text.encode()).hexdigest() else None
    except (OSError, ValueError):
        return None


def write_value(file: Path, value: Any) -> None:
    """Write plain data behind its SHA-256."""
    text = json.dumps(value)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, f"{hashlib.sha256(text.encode()).hexdigest()} {text}")


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
        path, state, now = path.absolute(), _state(path), time.time_ns()
        file = (self.kept_in or Path()) / f"{hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:32]}.json"
        if file not in self._known:
            self._known[file] = self._read(file)
        entry = self._known[file].get(path.name)
        if state is None or entry is None or entry[0] != state:
            entry = self._known[file][path.name] = [state, {}]
        if what not in entry[1]:
            entry[1][what] = compute(path)
            # A second change within one tick of the file system's clock would leave the same state.
            is_old = state is not None and now - state[2] > (2 * 10**7 if state[2] % 10**9 else 2 * 10**9)
            if is_old and self.kept_in is not None:
                self._new.setdefault(file, {})[path.name] = entry
        return entry[1][what]

    def _read(self, file: Path) -> dict[str, list]:
        return (read_value(file) if self.kept_in else None) or {}

    def write(self) -> None:
        """Add what is new to the files; another process may have added to them, too."""
        while self._new:
            file, entries = self._new.popitem()
            with contextlib.suppress(OSError):  # in a read-only cache nothing is kept
                write_value(file, self._read(file) | entries)


contents = Contents()


def _state(path: Path) -> list[int] | None:
    try:
        return state_of(path)
    except OSError:
        return None
