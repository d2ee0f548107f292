"""Files found by paths and globs: each file once, however many links lead to it."""

import difflib
import glob
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError


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
