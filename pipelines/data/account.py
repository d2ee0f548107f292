"""The account of a split: all that came in, counted once, by what became of it. Standard library only.

    account.used("column", "text", rows)
    account.unused("column", "author", rows)
    account.left_out("document", "empty", place="a.txt")
    account.cut("text", "beyond max_length=64", tokens=312)
    account.read_as("class", "Billing ", "Billing")
    account.repeated("row", "also in train")

Whoever decides counts: the reader of files, the labels, the encoder. Accounts of batches, shards and processes are
added, in any order. account_words.py writes the sentences.
"""

import re
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, NamedTuple, Self

USED = "used"  # is in the rows, as it came
UNUSED = "unused"  # is there, and nothing reads it
LEFT_OUT = "left_out"  # is in no row, as a whole
CUT = "cut"  # is in a row, without a part of it
READ_AS = "read_as"  # is in a row as something else
REPEATED = "repeated"  # is in more than one row, or split
NOTED = "noted"  # a sentence of who read it, such as a summary over several lines
FATES = (USED, UNUSED, LEFT_OUT, CUT, READ_AS, REPEATED, NOTED)
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
    """number: of the things. more: sizes of them, such as {"tokens": 4210}. places: the first few. hint: the way out.
    is_usual: whether nobody needs to be told."""

    number: int = 0
    more: dict[str, int] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    hint: str = ""
    is_usual: bool = True

    def add(self, other: "Entry") -> None:
        self.number += other.number
        for size, number in other.more.items():
            self.more[size] = self.more.get(size, 0) + number
        if other.places and other.places != self.places:
            self.places = tuple(nsmallest(PLACES, {*self.places, *other.places}, key=in_order))
        self.hint, self.is_usual = max(self.hint, other.hint), self.is_usual and other.is_usual


class Account:
    """Entries by key. Sums do not depend on the order of what is added.

    Of every count one may tell: place: where it is. hint: the setting that changes it. is_usual: see Entry. All other
    keywords are sizes, such as tokens=4210.
    """

    def __init__(self, entries: Iterable[tuple[Key, Entry]] = ()):
        self._entries: dict[Key, Entry] = {}
        self._kept: dict[tuple[str, str], list[Key]] = {}  # in order
        for key, entry in entries:
            self._add(key, entry)

    # ---- counting

    def used(self, what: str, name: str = "", number: int = 1, **told: Any) -> None:
        self._add(Key(USED, what, str(name)), entry_of(number, **told))

    def unused(self, what: str, name: str, number: int = 1, *, is_usual: bool = True, **told: Any) -> None:
        self._add(Key(UNUSED, what, str(name)), entry_of(number, is_usual=is_usual, **told))

    def left_out(self, what: str, why: str, number: int = 1, *, is_usual: bool = False, **told: Any) -> None:
        self._add(Key(LEFT_OUT, what, "", why), entry_of(number, is_usual=is_usual, **told))

    def cut(self, what: str, why: str, number: int = 1, *, is_usual: bool = True, **told: Any) -> None:
        self._add(Key(CUT, what, "", why), entry_of(number, is_usual=is_usual, **told))

    def read_as(
        self, what: str, name: str, as_what: str, number: int = 1, *, is_usual: bool = False, **told: Any
    ) -> None:
        """name: how it is written in the data; "": that is not worth a name."""
        self._add(Key(READ_AS, what, str(name), as_what), entry_of(number, is_usual=is_usual, **told))

    def repeated(self, what: str, where: str, number: int = 1, **told: Any) -> None:
        self._add(Key(REPEATED, what, "", where), entry_of(number, is_usual=False, **told))

    def note(self, *sentences: str) -> None:
        for sentence in sentences:
            self._add(Key(NOTED, "", "", sentence), entry_of(1, is_usual=False))

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

    __hash__ = None

    def to_json(self) -> list[dict[str, Any]]:
        """A list of entries, each with what differs from the default."""
        return [
            {name: value for name, value in key._asdict().items() if value}
            | {"number": entry.number}
            | entry.more
            | ({"places": list(entry.places)} if entry.places else {})
            | ({"hint": entry.hint} if entry.hint else {})
            | ({} if entry.is_usual else {"unusual": True})
            for key, entry in self.entries()
        ]

    @classmethod
    def from_json(cls, entries: Iterable[dict[str, Any]]) -> "Account":
        return cls(_read(dict(entry)) for entry in entries)


def entry_of(number: int, place: str = "", hint: str = "", is_usual: bool = True, **more: int) -> Entry:
    return Entry(number, more, (place,) if place else (), hint, is_usual)


def _read(given: dict[str, Any]) -> tuple[Key, Entry]:
    key = Key(*(given.pop(name, "") for name in Key._fields))
    number, places, hint = given.pop("number"), tuple(given.pop("places", ())), given.pop("hint", "")
    is_usual = not given.pop("unusual", False)
    return key, Entry(number, given, places, hint, is_usual)


def in_order(place: str) -> list:
    """The key by which line 9 stands before line 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", place)] + [(-2, place)]
