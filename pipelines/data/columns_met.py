"""The columns that rows have, and those of them that are read."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .account import Account
from .cells import cell_names


class ColumnsMet:
    """Counts the columns of rows. read: those that are read; dots lead into nested dicts, as in cells.py."""

    def __init__(self, read: Iterable[str]):
        self.read = set(read)
        self._kinds: Counter[tuple[str, ...]] = Counter()  # most rows have the same columns
        self._nulls: Counter[str] = Counter()

    def add(self, row: dict[str, Any], unread: Iterable[str] = ()) -> None:
        """A row as it was read. unread: columns that its place has beside those of the row."""
        self._nulls.update(name for name in self.read & row.keys() if row[name] is None)
        is_nested = any(isinstance(value, dict) for value in row.values())
        there = {name for name, value in row.items() if value is not None or name not in self.read}
        names = cell_names({name: row[name] for name in there}) if is_nested else there
        self._kinds[(*names, *unread)] += 1

    def into(self, account: Account) -> None:
        """Add the counts: of a dict of which parts are read, its other parts; of one that nothing reads, itself."""
        for name in self.read:
            account.used("column", name, 0)
        for name, rows in self._nulls.items():
            account.unused("null", name, rows)
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
