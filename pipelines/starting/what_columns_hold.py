"""What the columns of some rows hold: texts, numbers, classes, lists; by their content, with names as hints."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache, cached_property
from itertools import islice
from typing import Any

from ..data.cells import cell, cell_names, list_in
from ..errors import UserError
from ..recipes.recipe_files import shipped_yaml

KEPT = 4_000  # rows that are looked at, spread over all
MOST_ROWS = 1_000_000  # that are read for them
LONGEST_CLASS, MOST_CLASSES = 60, 200  # characters of a class's name, and classes
NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?\s*")
DATE = re.compile(r"\s*(\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|[A-Z][a-z]{2},? [A-Z\d][a-z\d]{1,2} \d)([T ,].*)?")
PLACE = re.compile(r"\s*(https?://|www\.)?[^\s/]+\.[^\s]+/[^\s]*\s*|[^\s@]+@[^\s@]+\.\w+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")  # scripts without spaces between words
SIGNS = {"semicolon": ";", "bar": "|", "comma": ","}  # between several classes in a text, the surest first
IDS = re.compile(r"|id|.*_id|.*Id|.*ID|uuid|guid|index|idx|key|unnamed: ?\d+|#|no\.?|nr\.?|row(_?(id|number))?", re.I)


class Column:
    """One column of some rows. filled: its values that are not empty; share: of the rows that have one.

    lists: the values, where they are lists, also as a text writes them; names: of the classes that the data store.
    """

    def __init__(self, name: str, values: list[Any]):
        self.name = name
        self.filled = [list_in(getattr(value, "class_name", value)) for value in values if not is_empty(value)]
        self.share, self.size = len(self.filled) / max(1, len(values)), len(values)
        self.has_names = any(hasattr(value, "class_name") for value in values)
        self.lists = [value for value in self.filled if isinstance(value, list)]
        self.texts = [value for value in self.filled if isinstance(value, str)]

    def all_are(self, values: list[Any]) -> bool:
        return len(values) >= max(1, 0.95 * len(self.filled))

    @cached_property
    def numbers(self) -> list[float]:
        """The numbers that nearly all values are or write; [] where they are none."""
        found = [number for value in self.filled if (number := as_number(value)) is not None]
        return found if self.all_are(found) else []

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each value is there; of lists each of their items."""
        items = [item for value in self.lists for item in value] if self.all_are(self.lists) else self.filled
        return Counter(" ".join(str(item).split()) for item in items if not isinstance(item, dict | list))

    @cached_property
    def words(self) -> float:
        """Words of a text on average."""
        some = self.texts[:500]
        return sum(len(text.split()) + len(UNSPACED.findall(text)) / 2 for text in some) / max(1, len(some))

    @property
    def words_of_items(self) -> float:
        """Words of the items of lists on average."""
        return sum(len(name.split()) for name in self.counts) / max(1, len(self.counts))

    @cached_property
    def separator(self) -> str | None:
        """The name of the sign between several classes in a text; None: there is none."""
        for name, sign in SIGNS.items():
            cells = [[part.strip() for part in text.split(sign)] for text in self.texts]
            parts = {part for cell in cells for part in cell}
            comes_again = 2 * len(parts) <= max(len(cells), 5) and len(parts) < len(self.counts)
            if comes_again and sum(map(len, cells)) > 1.2 * len(cells) and max(map(len, parts)) <= LONGEST_CLASS:
                return name
        return None

    @cached_property
    def parts(self) -> set[str]:
        """The classes of which each value has several, in a list or a text; empty where it holds none."""
        if self.lists and self.all_are(self.lists):
            return {*self.counts} if 2 * len(self.counts) <= sum(self.counts.values()) + 2 else set()
        sign = SIGNS.get(self.separator or "")
        return {part.strip() for text in self.texts for part in text.split(sign)} if sign else set()

    @property
    def different(self) -> float:
        """The share of values that no earlier one equals."""
        return len(self.counts) / max(1, len(self.filled))

    @cached_property
    def is_aside(self) -> bool:
        """Whether it tells rows apart and is no content: ids, dates, addresses, one value alone, hardly any value."""
        if self.share < 0.1 or (len(self.counts) < 2 < self.size and not self.lists):
            return True
        if self.texts and self.all_are([text for text in self.texts if DATE.fullmatch(text) or PLACE.fullmatch(text)]):
            return True
        in_order = self.numbers == sorted(self.numbers) and all(number == int(number) for number in self.numbers)
        is_id = self.different > 0.95 and (self.words < 1.5 if self.texts else in_order)
        return is_id and (bool(IDS.fullmatch(self.name)) or (bool(self.numbers) and in_order and self.size > 5))

    @cached_property
    def is_prose(self) -> bool:
        """Whether it holds texts of several words, most of them different."""
        several = self.words >= 2.5 and (self.different >= 0.2 or self.words >= 12)
        return self.all_are(self.texts) and not self.numbers and not self.is_aside and several

    @cached_property
    def is_class(self) -> bool:
        """Whether few short values come again and again."""
        if self.is_aside or not self.counts or self.lists or any(isinstance(value, dict) for value in self.filled):
            return False
        is_whole = all(number == int(number) for number in self.numbers)
        fits = (
            len(self.counts) <= (20 if self.numbers else MOST_CLASSES) and max(map(len, self.counts)) <= LONGEST_CLASS
        )
        return (
            fits
            and is_whole
            and 2 * len(self.counts) <= max(len(self.filled), 5)
            and (self.has_names or self.words < 7)
        )

    def hint(self, patterns: str | list[str]) -> int:
        """How much a word in its name says that it is one of these: 3 for the likeliest, 0 for nothing. patterns: one
        of the lists in names.yaml, or a list."""
        patterns = hints()[patterns] if isinstance(patterns, str) else patterns
        name = re.sub(r"([a-z])([A-Z])", r"\1_\2", self.name.rpartition(".")[2]).lower()
        found = (rank for rank, words in enumerate(patterns) if re.search(rf"(\b|_)({words})", name))
        return 3 - next(found, 3)


class Table:
    """Some rows, spread over all there are, and their columns. number: of all rows that can be read, of the first
    MOST_ROWS; faults: of those that cannot."""

    def __init__(self, rows: Iterable[dict[str, Any] | UserError], name: str):
        self.rows, self.number, self.faults, step, fault = [], 0, 0, 1, None
        for row in islice(rows, MOST_ROWS):
            if isinstance(row, UserError):
                fault, self.faults = fault or row, self.faults + 1
                continue
            if self.number % step == 0:
                self.rows.append(row)
            if len(self.rows) > KEPT:
                self.rows, step = self.rows[::2], 2 * step
            self.number += 1
        if not self.rows:
            raise fault or UserError(f"{name} holds no row")
        names = dict.fromkeys(name for row in self.rows[:200] for name in names_of(row))
        self.columns = {name: Column(name, [value_of(row, name) for row in self.rows]) for name in names}

    def content(self) -> list[Column]:
        return [column for column in self.columns.values() if not column.is_aside]


def names_of(row: dict[str, Any]) -> list[str]:
    """The columns of a row, and those within dicts but for images, which have bytes."""
    plain = {name: None if isinstance(value, dict) and "bytes" in value else value for name, value in row.items()}
    return cell_names(plain) + [name for name in hints()["within"] if value_of(row, name) is not None]


def value_of(row: dict[str, Any], name: str) -> Any:
    try:
        return cell(row, name)
    except KeyError:
        return None


def is_empty(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str | list | dict) and not str(value).strip("[]{} \n"))


def as_number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value.replace(",", ".")) if NUMBER.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def language_of(texts: Iterable[str]) -> str | None:
    """The code of a language, by the script of some texts or their most frequent words; None: it is not told."""
    text = " ".join(islice(texts, 200))[:20_000].lower()
    scripts = Counter(unicodedata.name(letter, "").split(" ")[0].split("-")[0] for letter in text if letter.isalpha())
    script = scripts.most_common(1)[0][0] if scripts else ""
    if script != "LATIN":
        return "ja" if scripts["HIRAGANA"] else hints()["scripts"].get(script)
    words = Counter(re.findall(r"\w+", text))
    found = {code: sum(words[word] for word in of.split()) for code, of in hints()["languages"].items()}
    best = max(found, key=found.__getitem__)
    return best if found[best] > 0.06 * words.total() else None


@cache
def hints() -> dict[str, Any]:
    """configs/starting/names.yaml."""
    return shipped_yaml("starting", "names")
