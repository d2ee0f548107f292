"""Files: opened with or without gzip, identified by content; errors as sentences."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from ..errors import UserError, first_line

_BOM = b"\xef\xbb\xbf"


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
        reason = first_line(error).rstrip(".")
        raise UserError(f"{field}: {path} is not a complete gzip file ({reason}).") from None
    except OSError as error:
        raise UserError(
            f"{field}: {path} cannot be read ({error.strerror or first_line(error).rstrip('.')})."
        ) from None


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
