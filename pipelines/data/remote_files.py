"""Files behind URLs (s3://, gs://, https://, hf:// and whatever else fsspec knows), copied into the cache once.

Readers see local paths only. A file that has changed at its URL, by the size, time or checksum reported there, is
copied again. If the URL cannot be reached, copies of earlier runs are used: so a login node can fetch the data for a
node without a network.
"""

import json
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError, first_line
from ..manifest import cache_folder
from ..recipes.secrets import without_signatures
from ..storage.atomic import write_atomically
from ..storage.cache import cached_folder, is_complete, sha
from ..words import say

KIND = "remote"
MISSING = 404  # a web server's status for a file that it lacks
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
# Entries of a file's info in fsspec that change with the file.
_STATE = ("size", "ETag", "etag", "Last-Modified", "LastModified", "last_modified", "Content-MD5", "Digest", "md5Hash")
_STATE += ("mtime", "updated", "created", "blob_id", "generation", "VersionId")


def is_copy(path: Path) -> bool:
    """Whether a file is a copy from a URL; the name of its folder then has no meaning."""
    return path.parent.parent.name == KIND


def with_local_copies(
    patterns: str | list[str], field: str, cache_dir: str | None, without: Collection[str] = ()
) -> str | list[str]:
    """The paths and globs, each URL replaced by the local copies of its files.

    A URL may be a pattern with `*` if its file system can list files. without: real paths of copies that such patterns
    leave out. Raises UserError for a URL of an unknown kind, or of one whose package is missing; for one without a
    file; and for one that cannot be reached and has no copy in the cache.
    """
    result = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not _URL.match(pattern):
            result.append(pattern)
            continue
        try:
            copies = _copies(field, pattern, cache_folder(cache_dir))
        except UserError as error:  # its text may end up in a log
            raise UserError(without_signatures(str(error))) from error.__cause__
        paths = [path for path in copies if "*" not in pattern or os.path.realpath(path) not in without]
        if not paths:
            raise UserError(f"{field}={pattern!r} matches nothing but files that are for validation or test.")
        result += map(str, paths)
    return patterns if result == [patterns] else result


def _copies(field: str, pattern: str, cache: Path) -> list[Path]:
    """The copies of a URL's files, in the order of their places."""
    public = without_signatures(pattern)  # a saved recipe holds no other form, and finds the copies by this one
    known = cache / KIND / f"{sha(public)}.json"  # the copies of the latest run: [[entry, file]]
    try:
        files = _places(field, pattern)
    except UserError:
        raise
    except Exception as error:  # each of fsspec's packages raises its own kinds of errors
        if isinstance(error, FileNotFoundError):
            if error.__cause__ is None or getattr(error.__cause__, "status", None) == MISSING:
                raise UserError(f"{field}={pattern!r}: no such file.") from None
            error = error.__cause__  # for web addresses fsspec raises this whatever the cause was
        copies = _known_copies(known)
        if copies is None:
            raise UserError(f"{field}={pattern!r} cannot be reached: {_reason(error)}.") from None
        say([f"{public} cannot be reached ({_reason(error)}); the copy in the cache is used"])
        return copies
    entries = [[sha([without_signatures(place), state]), _name(place)] for _, place, state in files]
    for (system, place, _), (entry, name) in zip(files, entries):
        try:
            cached_folder(cache, KIND, entry, lambda work, f=system, p=place, n=name: f.get_file(p, str(work / n)))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{field}={pattern!r}: {place} cannot be read: {_reason(error)}.") from error
    with suppress(OSError):  # another user's cache is used as it is
        write_atomically(known, json.dumps(entries))
    return [cache / KIND / entry / name for entry, name in entries]


def _places(field: str, pattern: str) -> list[tuple[Any, str, dict]]:
    """(file system, place, state) of each file of a URL, sorted by place."""
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(pattern)
    except (ImportError, ValueError) as error:  # fsspec says which package to install, or that it knows no such kind
        raise UserError(f"{field}={pattern!r}: {_reason(error)}.") from None
    if "*" not in path:  # many addresses hold a question mark, so it is no pattern
        infos = {path: system.info(path)}
    else:
        # Not the infos of the listing: they hold less, or differ.
        infos = {place: system.info(place) for place in system.glob(path)}
        infos = {place: info for place, info in infos.items() if info["type"] == "file"}
        if not infos:
            raise UserError(f"{field}={pattern!r} matches no file.")
    if any(info["type"] == "directory" for info in infos.values()):
        raise UserError(f"{field}={pattern!r} is a folder; {pattern.rstrip('/') + '/*'!r} means the files in it.")
    return [
        (system, place, {name: str(info[name]) for name in _STATE if name in info})
        for place, info in sorted(infos.items())
    ]


def _name(place: str) -> str:
    """The name of the file, without the query of a web address."""
    return Path(place.partition("?")[0] if "http://" in place or "https://" in place else place).name


def _known_copies(known: Path) -> list[Path] | None:
    """The copies that an earlier run made; None where one is missing."""
    try:
        entries = json.loads(known.read_text())
    except (OSError, ValueError):
        return None
    folders = [known.parent / entry for entry, _ in entries]
    return [folder / name for folder, (_, name) in zip(folders, entries)] if all(map(is_complete, folders)) else None


def _reason(error: Exception) -> str:
    return without_signatures(first_line(error)).rstrip(".") or type(error).__name__
