"""Files: opened with or without compression, identified by content; errors as sentences."""

import codecs
import difflib
import glob
import io
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import UserError, first_line
from ..storage.contents import content_hash, contents
from ..storage.packed_files import is_damage, open_packed, packing_of

_BOM = b"\xef\xbb\xbf"
# Byte order marks; that of UTF-32 begins with that of UTF-16.
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", _BOM: "utf-8"}
_MARKS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_PART = 2**20  # bytes that are looked at together
_LOOKED_AT = 2**28  # of a file that begins with ASCII alone
NOT_UTF8 = "not UTF-8; write it in UTF-8"  # of a row in a file of UTF-8
WAY_OUT = "set data.encoding to what it is, such as cp1251, or write it in UTF-8"
# What Western European text in cp1252 hardly has: several other bytes than ASCII in a row, as words in Cyrillic, Greek
# and Chinese are, and signs between two letters, as letters of Polish and of the encodings of DOS would be.
_NOT_WESTERN = re.compile(
    rb"[\x80-\xff]{3,}|(?<=[A-Za-z])[\x80\x82\x84-\x89\x8b\x93-\x95\x98\x9b\xa1-\xaa\xac\xae\xaf\xb1-\xb3\xb5\xb6"
    rb"\xb8\xb9\xbc-\xbf](?=[A-Za-z])"
)


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


def open_file(path: Path, encoding: str = "utf-8", refuses: bool = True) -> IO[bytes]:
    """The file's bytes as UTF-8, unpacked where its suffix says that they are packed, without a byte order mark.

    encoding: of the file; UTF-8 means the one that is found. Bytes that are invalid in it are passed on as they are,
    and are invalid as UTF-8, too. refuses: whether a file whose encoding is not found raises UnicodeDecodeError.
    """
    if codecs.lookup(encoding).name == "utf-8":
        encoding = encoding_of(path) or encoding
        if refuses and encoding_of(path) is None:
            raise UnicodeDecodeError("UTF-8, UTF-16 or cp1252 as a whole", b"", 0, 0, WAY_OUT)
    stream = open_packed(path)
    if codecs.lookup(encoding).name != "utf-8":
        stream = io.BufferedReader(_Recoded(stream, encoding), 2**18)
    if stream.peek(3)[:3] == _BOM:  # a mark of some editors, not text, and JSON forbids it
        stream.read(3)
    return stream


def encoding_of(path: Path) -> str | None:
    """The encoding of a whole text file: UTF-8 (also where a few bytes are broken), UTF-16, UTF-32 or cp1252, as codecs
    name them; None: another one."""
    return contents.value(path, "encoding", _found_encoding)


def _found_encoding(path: Path) -> str | None:
    with open_packed(path) as stream:
        part = stream.read(_PART)
        marked = next((name for mark, name in _MARKS.items() if part.startswith(mark)), _without_mark(part))
        while marked is None and part.isascii() and stream.tell() < _LOOKED_AT and (more := stream.read(_PART)):
            part = more
        return marked or ("utf-8" if _decodes(part, "utf-8") else _judged(part + stream.read(16 * _PART)))


def _without_mark(part: bytes) -> str | None:
    """UTF-16 without a mark, known by the zeros beside each letter or sign of ASCII, all of them on one side."""
    zeros = {"utf-16-le": part[1::2].count(0), "utf-16-be": part[::2].count(0)}
    best, other = sorted(zeros, key=zeros.__getitem__, reverse=True)
    is_it = zeros[best] * 200 > len(part) and zeros[best] > 4 * zeros[other] and not len(part) % 2
    # As UTF-8, UTF-16 is broken, or every other byte is a control character; text with some zeros in it is neither.
    is_it = is_it and (4 * len(part.translate(None, bytes(range(32)))) < 3 * len(part) or not _decodes(part, "utf-8"))
    return best if is_it and _decodes(part, best) else None


def _decodes(part: bytes, encoding: str) -> bool:
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder(encoding)().decode(part, final=len(part) < _PART)
        return True
    return False


def _judged(content: bytes) -> str | None:
    """The encoding of text that is not UTF-8 throughout."""
    text = content.decode(errors="surrogateescape")
    broken = len(re.findall("[\udc80-\udcff]", text))
    whole = len(re.findall("[^\0-\x7f]", text)) - broken
    if whole > broken and broken <= max(3, whole // 10):
        return "utf-8"
    odd = sum(len(set(match)) > 1 or len(match) == 1 for match in _NOT_WESTERN.findall(content))
    is_western = not re.search(rb"[\x81\x8d\x8f\x90\x9d]", content) and 10 * odd <= broken
    return "cp1252" if is_western and whole * 4 <= broken else None


class _Recoded(io.RawIOBase):
    """A stream in another encoding, read as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str):
        self._text = io.TextIOWrapper(stream, encoding, "surrogateescape", newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        part = self._text.read(len(buffer) // 4).encode(errors="surrogateescape")  # at most four bytes a character
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._text.close()
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


# ---- files found by paths and globs: each once, however many links lead to it


def find_files(field: str, patterns: str | list[str], without: Collection[str] = ()) -> dict[Path, str]:
    """The files of paths and globs (`~` allowed, `**` crosses folders), each with the first pattern that matches it.

    A file that several names lead to, by links to it or to its folders, is found once: by its own name where a glob
    matches that, else by the shortest one. without: real paths that globs leave out.
    Raises UserError for a pattern without a file, and for what is no regular file.
    """
    files: dict[str, tuple[Path, str]] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        expanded = os.path.expanduser(pattern)
        if os.path.exists(expanded):  # before globbing: a file may really be called `a[1].txt`
            _check_regular(field, pattern, expanded)
            files.setdefault(os.path.realpath(expanded), (Path(expanded), pattern))
            continue
        if not glob.has_magic(expanded):
            raise UserError(f"{field}={pattern!r}: no such file{_nearest_file(Path(expanded))}.")
        matches = {path: os.path.realpath(path) for path in set(_matches(Path(expanded))) if os.path.isfile(path)}
        if not matches:
            raise UserError(f"{field}={pattern!r} matches no file.")
        named: dict[str, str] = {}
        for path in sorted(
            matches, key=lambda path: (matches[path] != os.path.abspath(path), path.count(os.sep), path)
        ):
            named.setdefault(matches[path], path)
        paths = sorted(path for real, path in named.items() if real not in without)
        if not paths:
            raise UserError(f"{field}={pattern!r} matches nothing but files that are for validation or test.")
        for path in paths:
            files.setdefault(matches[path], (Path(path), pattern))
    return dict(files.values())


def real_paths(*sources: Any) -> set[str]:
    """The real paths of the files that some sources read; a source without files, and None, add none."""
    return {os.path.realpath(path) for source in sources for path in getattr(source, "paths", ())}


def _matches(pattern: Path) -> Iterator[str]:
    """What glob.glob(recursive=True) finds, except that folders which a link leads back to are not entered again.

    glob would follow a link to the folder it lies in until the system refuses, 40 levels down.
    """
    parts = pattern.parts
    if "**" not in parts:
        yield from glob.glob(str(pattern))
        return
    place = parts.index("**")
    tail = parts[place + 1 :] or ("*",)
    for start in glob.glob(str(Path(*parts[:place]))):
        for folder in _folders(start):
            yield from _matches(Path(glob.escape(folder), *tail))


def _folders(start: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """A folder and the folders in it at any depth, except hidden ones. above: the real paths of those it is in."""
    real = os.path.realpath(start)
    if real in above:
        return
    yield start
    for entry in os.scandir(start):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _folders(entry.path, (*above, real))


def _check_regular(field: str, pattern: str, path: str) -> None:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise UserError(f"{field}={pattern!r} is a folder; {os.path.join(pattern, '*')!r} means the files in it.")
    if not stat.S_ISREG(mode):
        raise UserError(f"{field}={pattern!r} is a pipe or a device; write its content into a file, to be read again")


def _nearest_file(path: Path) -> str:
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except OSError:
        return f" (there is no folder {str(path.parent)!r})"
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""
