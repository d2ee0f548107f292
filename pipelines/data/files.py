"""Files: opened with or without compression, identified by content; errors as sentences."""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import UserError, first_line
from ..storage.checksums import content_hash
from ..storage.packed_files import is_damage, open_packed, packing_of

_BOM = b"\xef\xbb\xbf"


def name_of_files(paths: list[Path]) -> str:
    """`a.txt`, or `a.txt and 2 more`; an empty file is not the one that is named."""
    named = next((path for path in paths if path.stat().st_size), paths[0])
    return named.name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def file_identities(field: str, paths: list[Path]) -> list[list]:
    """[name, size, SHA-256] of each file: part of the fingerprint of the data."""
    files = []
    for path in paths:
        with readable(field, path):
            files.append([path.name, path.stat().st_size, content_hash(path)])
    return files


@contextmanager
def readable(field: str, path: Path) -> Iterator[None]:
    """Turn an error while `path` is read into a UserError that begins with the recipe's `field`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{field}: {path} is not {error.encoding} ({error.reason}).") from None
    except Exception as error:
        reason = first_line(error).rstrip(".")
        if is_damage(error, path):
            raise UserError(f"{field}: {path} is not a complete {packing_of(path)} file ({reason}).") from None
        if isinstance(error, OSError):
            raise UserError(f"{field}: {path} cannot be read ({error.strerror or reason}).") from None
        raise


def open_file(path: Path, encoding: str = "utf-8") -> IO[bytes]:
    """The file's bytes as UTF-8, unpacked where its suffix says that they are packed, without a byte order mark.

    encoding: of the file. Bytes that are invalid in it are passed on as they are, and are invalid as UTF-8, too.
    """
    stream = open_packed(path)
    if codecs.lookup(encoding).name != "utf-8":
        stream = io.BufferedReader(_Recoded(stream, encoding), 2**18)
    if stream.peek(3)[:3] == _BOM:  # a mark of some editors, not text, and JSON forbids it
        stream.read(3)
    return stream


class _Recoded(io.RawIOBase):
    """A stream in another encoding, read as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str):
        self._stream, self._decoder = stream, codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._rest, self._ended = b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._rest and not self._ended:
            part = self._stream.read(2**16)
            self._ended = not part
            self._rest = self._decoder.decode(part, final=self._ended).encode(errors="surrogateescape")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()


def bounded_lines(stream: IO[bytes], longest: int) -> Iterator[bytes | None]:
    """The lines with their line breaks; None for one of more than `longest` bytes, which is never held in memory."""
    while line := stream.readline(longest + 1):
        if len(line) - line.endswith(b"\n") <= longest:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(2**20)
        yield None
