"""Cleaning (`data.clean`): which documents are left out before tokenisation, and the report on them.

This is decided in one pass over the whole source and kept in the cache, so that shards, processes and resumed runs
leave out the same documents, wherever they begin. A stream is judged while it is read.
"""

import copy
import hashlib
import importlib
import json
import os
import runpy
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, need_package
from ..recipes.data_section import CleanSettings
from ..storage.cache import cached_folder, sha
from ..storage.contents import hashed_files
from ..words import counted, working
from .account import Account
from .contamination import NearDuplicates, TestSets, shared_notes, words_of
from .documents import Document, Skipped, Source

_FORMAT = 1  # raise it when the same settings leave out other documents
PART_BYTES = 2**30  # of files: the size of a part, as in tokenization.py
EXAMPLES = 3  # documents that the report shows for each reason
LISTED = 10  # shared texts that the report shows for each test set; the file SHARED has all of them
FOUND, DROPPED, SHARED = "found.json", "dropped.npz", "shared.jsonl"
EXACT, NEAR, OVERLAP = "exact duplicates", "near duplicates", "in common with test sets"


class Judge:
    """Decides for one document after another whether it is left out; a duplicate repeats one that passed before it."""

    def __init__(self, clean: CleanSettings, keeps: Callable[[str], Any] | None, tests: TestSets | None):
        self.clean, self.keeps, self.tests = clean, keeps, tests
        self._texts: set[bytes] = set()
        self._near = None if clean.near_duplicates is None else NearDuplicates(clean.near_duplicates)
        self.latest: dict = {}

    def reason(self, document: Document) -> str | None:
        clean, text = self.clean, document.text
        if clean.min_length is not None and len(text) < clean.min_length:
            return f"shorter than {clean.min_length:,} characters"
        if clean.max_length is not None and len(text) > clean.max_length:
            return f"longer than {clean.max_length:,} characters"
        if self.keeps is not None and not self._is_kept(document):
            return f"refused by {clean.filter}"
        words = words_of(text) if self.tests or self._near else []
        self.latest = self.tests.shared(words) if self.tests else {}
        if self.latest:
            return OVERLAP
        if clean.exact_duplicates:
            digest = hashlib.blake2b(text.strip().encode(), digest_size=16).digest()
            if digest in self._texts:
                return EXACT
            self._texts.add(digest)
        return NEAR if self._near and self._near.was_there(words) else None

    def _is_kept(self, document: Document) -> bool:
        field = f"data.clean.filter={self.clean.filter}"
        try:
            answer = self.keeps(document.text)
        except Exception as error:  # whatever a user's function raises
            raise UserError(f"{field} failed at {document.source}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, bool | np.bool_):
            raise UserError(f"{field} returned {answer!r} for {document.source}; it has to return true or false")
        return bool(answer)


class CleanSource(Source):
    """A source with Skipped in place of the documents that are left out, so that the others keep their numbers.

    tests: the test sets with which no document may share words, or None. most: the number of documents that are read,
    not counting those left out; None: all. streamed: whether the source is read only once, so that its documents are
    judged while they are read.

    Raises UserError for a filter that cannot be loaded and for a missing package; while it is read, if the filter
    fails or no document is left.
    """

    def __init__(
        self,
        source: Source,
        clean: CleanSettings,
        cache: Path,
        tests: TestSets | None,
        most: int | None = None,
        streamed: bool = False,
    ):
        if clean.near_duplicates is not None:
            need_package("data.clean.near_duplicates", "datasketch", "near_duplicates")
        self.source, self.clean, self.cache, self.tests, self.most = source, clean, cache, tests, most
        self.name, self.where, self.columns = source.name, source.where, source.columns
        self.splits_by_name, self.has_encoding, self.streamed = source.splits_by_name, source.has_encoding, streamed
        self.keeps, self._code = (None, None) if clean.filter is None else _function(clean.filter)
        self._parts = list(enumerate(source.parts(PART_BYTES)))

    def read_from(self, place: list | None = None) -> Iterator[tuple[Any, Document | Skipped, list]]:
        """place: [number of the part, items read of it, the place within it]."""
        first, done, inner = place or (0, 0, None)
        judge = Judge(self.clean, self.keeps, self.tests) if self.streamed else None
        for at in range(first, len(self._parts)):
            part, source = self._parts[at]
            dropped = self._found[1].get(part, ()) if judge is None else ()
            for number, (row, item, after) in enumerate(source.read_from(inner), start=done):
                left_out = number in dropped or (judge and isinstance(item, Document) and judge.reason(item))
                yield row, Skipped("cleaned", item.source) if left_out else item, [at, number + 1, after]
            done, inner = 0, None

    def parts(self, size: int) -> list[Source]:
        """Parts of about a gigabyte, whatever `size` is: what is left out is stored for these parts."""
        parts = [copy.copy(self) for _ in self._parts]
        for part, numbered in zip(parts, self._parts):
            part._parts = [numbered]
        return parts

    @property
    def num_shards(self) -> int:
        return self.source.num_shards

    def shard(self, number: int) -> Source:
        """For a stream only, which is judged while it is read."""
        part = copy.copy(self)
        part.source = self.source.shard(number)
        part._parts = [(0, part.source)]
        return part

    def size_hint(self) -> int | None:
        return self.source.size_hint()

    def identity(self) -> Any:
        """Depends on the content of the test sets and of the filter's file, not on their paths."""
        settings = asdict(self.clean)
        for name in ("filter", "decontaminate", "decontaminate_words"):
            del settings[name]
        tests = self.tests and self.tests.identity()
        return {"clean": [_FORMAT, settings, self._code, tests, self.most], "source": self.source.identity()}

    def account(self) -> Account:
        """How many documents of the whole source were left out, by reason; empty for a stream."""
        account = Account()
        if self.streamed:
            return account
        report, _, folder = self._found
        reasons = report["dropped"]
        number = sum(count for count, _ in reasons.values())
        lines = [f"cleaning left out {number:,} of {counted(report['documents'], 'document')} of {self.name}"]
        for reason, (count, examples) in sorted(reasons.items(), key=lambda row: -row[1][0]):
            lines.append(f"{count:,} {reason}, such as {'; '.join(examples)}")
        shared = shared_notes(report["sets"], self.clean.decontaminate_words, f"clean/{folder.name}/{SHARED}")
        account.note("\n".join(lines), *shared)
        return account

    @cached_property
    def _found(self) -> tuple[dict, dict[int, set[int]], Path]:
        """(the report on the whole source, the numbers of the left-out items of each part, the folder in the cache)."""
        with hashed_files() as files:
            key = sha([self.identity(), PART_BYTES])
        folder = cached_folder(self.cache, "clean", key, self._find, files=files)
        with np.load(folder / DROPPED) as arrays:
            dropped = {int(part): set(arrays[part].tolist()) for part in arrays.files}
        return json.loads((folder / FOUND).read_text()), dropped, folder

    def _find(self, folder: Path) -> None:
        """Judge every document of the source and write to `folder` which ones are left out."""
        with working(f"cleaning {self.name}"), (folder / SHARED).open("w", encoding="utf-8") as shared:
            judge, result = Judge(self.clean, self.keeps, self.tests), _Findings(shared)
            for part, number, item in self._all():
                reason = judge.reason(item)
                result.add(part, number, item, reason, judge.latest if reason == OVERLAP else {})
                if result.kept == self.most:
                    break
        result.write(folder, self.tests)
        if not result.kept:
            words = ", ".join(f"{count:,} {reason}" for reason, (count, _) in result.reasons.items())
            raise UserError(f"{self.where}: data.clean leaves nothing of {self.name} ({words}); ask for less")

    def _all(self) -> Iterator[tuple[int, int, Document]]:
        for part, source in enumerate(self.source.parts(PART_BYTES)):
            for number, item in enumerate(source.items()):
                if isinstance(item, Document):
                    yield part, number, item


class _Findings:
    """The results of a pass over a source. shared: a file to which every text shared with a test set is written."""

    def __init__(self, shared):
        self.shared, self.documents = shared, 0
        self.dropped: dict[int, list[int]] = {}
        self.reasons: dict[str, list] = {}  # reason -> [documents, the first ones]
        self.sets: dict[str, tuple[list, list[str]]] = {}  # set -> (hashes by document, first shared texts)

    def add(self, part: int, number: int, document: Document, reason: str | None, in_common: dict) -> None:
        self.documents += 1
        if reason is None:
            return
        self.dropped.setdefault(part, []).append(number)
        of_reason = self.reasons.setdefault(reason, [0, []])
        of_reason[0] += 1
        if len(of_reason[1]) < EXAMPLES:
            of_reason[1].append(f"{document.source} {_first_words(document.text)}")
        for name, (hashes, texts) in in_common.items():
            of_documents, listed = self.sets.setdefault(name, ([], []))
            of_documents.append(hashes)
            for text in texts:
                self.shared.write(json.dumps({"test": name, "document": document.source, "words": text}) + "\n")
            listed += [f"{document.source} {_first_words(text, 30)}" for text in texts[: LISTED - len(listed)]]

    @property
    def kept(self) -> int:
        return self.documents - sum(count for count, _ in self.reasons.values())

    def write(self, folder: Path, tests: TestSets | None) -> None:
        np.savez(folder / DROPPED, **{str(part): np.array(items, np.int64) for part, items in self.dropped.items()})
        sets = {}
        for name, texts in (tests.texts if tests else {}).items():
            hashes, listed = self.sets.get(name, ([], []))
            distinct = len(np.unique(np.concatenate(hashes))) if hashes else 0
            numbers = {"texts": texts, "too_short": tests.too_short[name], "documents": len(hashes)}
            sets[name] = numbers | {"sequences": distinct, "listed": listed}
        report = {"documents": self.documents, "dropped": self.reasons, "sets": sets}
        (folder / FOUND).write_text(json.dumps(report, indent=1))


def _first_words(text: str, number: int = 8) -> str:
    words = text.split()
    shown = " ".join(words[:number])[:200]
    return f"“{shown}{' …' if len(words) > number or len(shown) == 200 else ''}”"


def _function(name: str) -> tuple[Callable[[str], Any], list[str]]:
    """The function that data.clean.filter names, and [its name, the SHA-256 of its file]."""
    place, _, attribute = name.rpartition(":")
    field = f"data.clean.filter={name!r}"
    try:
        is_file = place.endswith(".py")
        names = runpy.run_path(os.path.expanduser(place)) if is_file else vars(importlib.import_module(place))
    except Exception as error:  # whatever a user's file raises
        raise UserError(f"{field} cannot be loaded: {type(error).__name__}: {error}") from error
    function = names.get(attribute)
    if not callable(function):
        raise UserError(f"{field}: {place} has no function {attribute}")
    return function, [attribute, hashlib.sha256(Path(names["__file__"]).read_bytes()).hexdigest()]
