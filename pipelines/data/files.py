"""Files: found by patterns, opened with or without gzip, identified by content; errors as sentences."""

import difflib
import glob
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from ..errors import UserError

_BOM = b"\xef\xbb\xbf"


def find_files(field: str, patterns: list[str]) -> list[Path]:
    """The files of paths and globs (`~` allowed, `**` crosses folders), each once; raises UserError for none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        if os.path.isdir(expanded):
            raise UserError(f"{field}={pattern!r} is a folder; {os.path.join(pattern, '*')!r} means the files in it.")
        if os.path.exists(expanded):  # before globbing: a file may really be called `a[1].txt`
            found[Path(expanded)] = None
            continue
        if not glob.has_magic(expanded):
            raise UserError(f"{field}={pattern!r}: no such file{_nearest_file(Path(expanded))}.")
        matches = [Path(match) for match in sorted(glob.glob(expanded, recursive=True)) if os.path.isfile(match)]
        if not matches:
            raise UserError(f"{field}={pattern!r} matches no file.")
        found.update(dict.fromkeys(matches))
    return list(found)


def _nearest_file(path: Path) -> str:
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except OSError:
        return f" (there is no folder {str(path.parent)!r})"
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def name_of_files(paths: list[Path]) -> str:
    """`a.txt`, or `a.txt and 2 more`."""
    return paths[0].name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def file_identities(field: str, paths: list[Path]) -> list[list]:
    """[name, size, SHA-256] of each file: part of the fingerprint of the data."""
    files = []
    for path in paths:
        with readable(field, path):
            state = path.stat()
            files.append([path.name, state.st_size, content_hash(str(path), state.st_size, state.st_mtime_ns)])
    return files


@lru_cache(maxsize=4096)
def content_hash(path: str, size: int, mtime_ns: int) -> str:
    """SHA-256 of a file's bytes; size and time of change are there so that a changed file is read again."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def readable(field: str, path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read into a UserError that begins with the recipe's `field`."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{field}: {path} is not a complete gzip file ({first_line(error)}).") from None
    except OSError as error:
        raise UserError(f"{field}: {path} cannot be read ({error.strerror or first_line(error)}).") from None


def open_file(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its name ends in .gz, without a byte order mark."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    stream = opener(path, "rb")
    try:
        if stream.peek(3)[:3] == _BOM:  # a mark of some editors, not text, and JSON forbids it
            stream.read(3)
    except BaseException:
        stream.close()
        raise
    return stream


def bounded_lines(stream: IO[bytes], longest: int) -> Iterator[bytes | None]:
    """The lines with their line breaks; None for one of more than `longest` bytes, which is never held in memory."""
    while line := stream.readline(longest + 1):
        if length_of(line) <= longest:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(2**20)
        yield None


def length_of(line: bytes) -> int:
    """Bytes of a line without its line break."""
    return len(line) - line.endswith(b"\n")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
