"""How people write labels in tables: other names for classes, several in a cell, decimal commas."""

import ast
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple


class Meaning(NamedTuple):
    """Which class a value means. names: {value: class}. merges: whether names that are alike are one."""

    names: Mapping[str, str] = {}
    merges: bool = False

    def __call__(self, value: Any) -> Any:
        """The class that `names` has for a value, or for one like it where such are merged; else the value itself."""
        name = str(getattr(value, "class_name", value))
        if self.merges and name not in self.names:
            name = next((known for known in self.names if alike(known) == alike(name)), name)
        return self.names.get(name, value)

    def identity(self) -> list:
        """JSON of what labels depend on beside the names of the classes; [] where values mean themselves."""
        return [self] if any(self) else []


@lru_cache(10_000)
def alike(name: str) -> str:
    """Equal for names that differ only in case, spaces, _, - or a full stop at the end."""
    words = re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", unicodedata.normalize("NFKC", name))
    return words.strip().rstrip(".").casefold()


def groups_alike(counts: Mapping[str, int]) -> list[list[str]]:
    """The names of each class that is written in several ways, the most frequent first."""
    groups = defaultdict(list)
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        groups[alike(name)].append(name)
    return [names for names in groups.values() if len(names) > 1]


class Cell(str):
    """The text of a cell with any number of classes."""


SIGNS = {";": "semicolons", "|": "bars", ",": "commas"}  # what may separate classes, the surest first


def sign_in(cells: Collection[str]) -> str | None:
    """The surest sign that is in some cells; None: there is none."""
    return next((sign for sign in SIGNS if any(sign in cell for cell in cells)), None)


def parts_of(cells: Mapping[str, int]) -> Counter[str]:
    """The classes in cells, with the numbers of these: what stands between the surest of their signs."""
    sign, counts = sign_in(cells), Counter()
    for cell, number in cells.items():
        parts = map(str.strip, cell.split(sign) if sign else [cell])
        counts.update(dict.fromkeys(filter(None, parts), number))
    return counts


def list_of(cell: str) -> list[Any]:
    """The list that a cell holds as JSON or, as pandas writes it, as Python; of another text one Cell, of none []."""
    if cell.strip().startswith("["):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError):
                return list(read(cell))
    return [Cell(cell)] if cell.strip() else []


def decimal_mark(texts: Iterable[str]) -> str | None:
    """What divides the numbers of a column, "comma" or "point"; None: 1,234 may be either, and so 1.234 beside 3,5."""
    marks, has_unsure_points = set(), False
    for text in texts:
        signs = re.findall("[,.]", text)
        is_of_thousands = len(signs) > 1 and len(set(signs)) == 1
        if re.fullmatch(r"\s*[+-]?[1-9]\d{0,2}[,.]\d{3}\s*", text):
            has_unsure_points = has_unsure_points or signs == ["."]
        elif signs:
            marks.add("comma" if (signs[-1] == ",") != is_of_thousands else "point")
    return None if len(marks) != 1 or (marks == {"comma"} and has_unsure_points) else marks.pop()


def plain_number(text: str, mark: str) -> str:
    """A number with a decimal point, and with nothing between thousands; other texts as they are."""
    point, between = (",", ".") if mark == "comma" else (".", ",")
    whole, sign, rest = text.strip().partition(point)
    if re.fullmatch(rf"[+-]?\d{{1,3}}(\{between}\d{{3}})+", whole):
        whole = whole.replace(between, "")
    return f"{whole}.{rest}" if sign else whole
