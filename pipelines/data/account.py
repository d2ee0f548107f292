"""The account of a split: all that came in, counted once, by what became of it. Standard library only.

    account.used("column", "text", rows)
    account.unused("column", "author", rows)
    account.left_out("document", "empty", place="a.txt")
    account.cut("text", "beyond max_length=64", texts)
    account.read_as("class", "Billing ", "Billing")

Whoever decides counts: the reader of files, the labels, the encoder. Accounts of batches, shards and processes are
added, in any order. account_words.py writes the sentences.
"""

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, NamedTuple, Self

from .cells import FromSheet, cell_names

USED = "used"  # is in the rows, as it came
UNUSED = "unused"  # is there, and nothing reads it
LEFT_OUT = "left_out"  # is in no row, as a whole
CUT = "cut"  # is in a row, without a part of it
READ_AS = "read_as"  # is in a row as something else
NOTED = "noted"  # a sentence of who read it, such as a summary over several lines
FATES = (USED, UNUSED, LEFT_OUT, CUT, READ_AS, NOTED)
PLACES = 5  # that are kept of an entry
KEPT = 1000  # keys of things of one kind with one fate; data may name things freely
OTHERS = "others"


class Key(NamedTuple):
    """fate: one of FATES. what: a noun, such as column. name: of this one; "": it needs none. why: a reason, or as
    what it is read."""

    fate: str
    what: str
    name: str = ""
    why: str = ""


@dataclass
class Entry:
    """number: of the things. places: the first few. hint: the setting that changes it. is_usual: whether nobody needs
    to be told."""

    number: int = 0
    places: tuple[str, ...] = ()
    hint: str = ""
    is_usual: bool = True

    def add(self, other: "Entry") -> None:
        self.number += other.number
        if other.places and other.places != self.places:
            self.places = tuple(nsmallest(PLACES, {*self.places, *other.places}, key=in_order))
        self.hint, self.is_usual = max(self.hint, other.hint), self.is_usual and other.is_usual


class Account:
    """Entries by key. Sums do not depend on the order of what is added."""

    def __init__(self, entries: Iterable[tuple[Key, Entry]] = ()):
        self._entries: dict[Key, Entry] = {}
        self._kept: dict[tuple[str, str], list[Key]] = {}  # in order
        for key, entry in entries:
            self._add(key, entry)

    # ---- counting

    def used(self, what: str, name: str = "", number: int = 1) -> None:
        self._add(Key(USED, what, str(name)), Entry(number))

    def unused(self, what: str, name: str, number: int = 1, *, is_usual: bool = True) -> None:
        self._add(Key(UNUSED, what, str(name)), Entry(number, is_usual=is_usual))

    def left_out(
        self, what: str, why: str, number: int = 1, *, place: str = "", hint: str = "", is_usual: bool = False
    ) -> None:
        self._add(Key(LEFT_OUT, what, "", why), Entry(number, (place,) if place else (), hint, is_usual))

    def cut(self, what: str, why: str, number: int = 1, *, is_usual: bool = True) -> None:
        self._add(Key(CUT, what, "", why), Entry(number, is_usual=is_usual))

    def read_as(
        self, what: str, name: str, as_what: str, number: int = 1, *, hint: str = "", is_usual: bool = False
    ) -> None:
        """name: how it is written in the data; "": that is not worth a name."""
        self._add(Key(READ_AS, what, str(name), as_what), Entry(number, hint=hint, is_usual=is_usual))

    def note(self, *sentences: str) -> None:
        for sentence in sentences:
            self._add(Key(NOTED, "", "", sentence), Entry(1, is_usual=False))

    def _add(self, key: Key, entry: Entry) -> None:
        """Of the keys of one kind the first KEPT are kept, whose sums are exact in whatever order they are met; of the
        others one sum. Only what may be used is kept where there is none of it, such as a class without a row."""
        if not entry.number and key.fate != USED:
            return
        if key not in self._entries and key.fate != USED and key.name != OTHERS:
            kept, others = self._kept.setdefault(key[:2], []), Key(*key[:2], OTHERS, OTHERS)
            if len(kept) == KEPT and key > kept[-1]:
                key = others
            else:
                insort(kept, key)
                if len(kept) > KEPT:
                    self._add(others, self._entries.pop(kept.pop()))
        self._entries.setdefault(key, Entry()).add(entry)

    def update(self, other: Self) -> None:
        """Add another account to this one."""
        for key, entry in other.entries():
            self._add(key, entry)

    def __add__(self, other: Self) -> "Account":
        both = Account(self.entries())
        both.update(other)
        return both

    # ---- reading

    def entries(self, fate: str | None = None, what: str | None = None) -> Iterator[tuple[Key, Entry]]:
        """(key, entry) in the order of the keys: all, or those of a fate, or of things of one kind."""
        for key in sorted(self._entries, key=lambda key: (FATES.index(key.fate), key)):
            if fate in (None, key.fate) and what in (None, key.what):
                yield key, self._entries[key]

    def number(self, fate: str, what: str) -> int:
        """How many things of a kind had this fate."""
        return sum(entry.number for _, entry in self.entries(fate, what))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self._entries == other._entries

    def to_json(self) -> list[dict[str, Any]]:
        """A list of entries, each with what differs from the default."""
        told = []
        for key, entry in self.entries():
            of_entry = {"places": [*entry.places], "hint": entry.hint, "unusual": not entry.is_usual}
            values = key._asdict() | {"number": entry.number} | of_entry
            told.append({name: value for name, value in values.items() if value or name == "number"})
        return told

    @classmethod
    def from_json(cls, entries: Iterable[dict[str, Any]]) -> "Account":
        account = cls()
        for one in entries:
            key, places = Key(*(one.get(name, "") for name in Key._fields)), tuple(one.get("places", ()))
            account._add(key, Entry(one["number"], places, one.get("hint", ""), "unusual" not in one))
        return account


def in_order(place: str) -> list:
    """The key by which line 9 stands before line 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", place)] + [(-2, place)]


class ColumnsMet:
    """Counts the columns of rows. read: those that are read; dots lead into nested dicts, as in cells.py."""

    def __init__(self, read: Iterable[str]):
        self.read = set(read)
        self._kinds: Counter[tuple[str, ...]] = Counter()  # most rows have the same columns
        self._nulls: Counter[str] = Counter()
        self._from_sheets: Counter[str] = Counter()

    def add(self, row: dict[str, Any], unread: Iterable[str] = ()) -> None:
        """A row as it was read. unread: columns that its place has beside those of the row."""
        self._nulls.update(name for name in self.read & row.keys() if row[name] is None)
        self._from_sheets.update(name for name in self.read if isinstance(row.get(name), FromSheet))
        is_nested = any(isinstance(value, dict) for value in row.values())
        there = {name for name, value in row.items() if value is not None or name not in self.read}
        names = cell_names({name: row[name] for name in there}) if is_nested else there
        self._kinds[(*names, *unread)] += 1

    def into(self, account: Account) -> None:
        """Add the counts: of a dict of which parts are read, its other parts; of one that nothing reads, itself."""
        for name, rows in self._nulls.items():
            account.unused("null", name, rows)
        for name, rows in self._from_sheets.items():
            account.read_as("cell", name, "of a sheet that are no texts, read as they are shown", rows, is_usual=True)
        for names, rows in self._kinds.items():
            account.used("row", number=rows)
            for name in names:
                if name in self.read:
                    account.used("column", name, rows)
                elif self._is_unread(name):
                    account.unused("column", name, rows)

    def _is_unread(self, name: str) -> bool:
        """Whether neither it nor a part of it is read, and of what it is a part of, another part is."""
        parts = name.split(".")
        outer = {".".join(parts[:end]) for end in range(1, len(parts))}
        return not self._holds_read(name) and not outer & self.read and all(map(self._holds_read, outer))

    def _holds_read(self, name: str) -> bool:
        return any(read.startswith(f"{name}.") for read in self.read)
