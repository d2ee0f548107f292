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

KEPT, MOST_ROWS = 10_000, 1_000_000  # rows that are looked at, spread over those that are read for them
LONGEST_CLASS, MOST_CLASSES, MOST_NUMBERS = 60, 200, 20  # characters of a class's name; classes, and such of numbers
NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?\s*")
ASIDE = re.compile(  # dates, addresses of the Web and of mail
    r"\s*(\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|[A-Z][a-z]{2},? [A-Z\d][a-z\d]{1,2} \d)([T ,].*)?"
    r"|\s*(https?://|www\.)?[^\s/]+\.[^\s]+/[^\s]*\s*|[^\s@]+@[^\s@]+\.\w+"
)
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")  # scripts without spaces between words
SIGNS = {"semicolon": ";", "bar": "|", "comma": ","}  # between several classes in a text, the surest first
IDS = re.compile(r"|.*_?id|uuid|guid|index|idx|key|unnamed: ?\d+|#|no\.?|nr\.?|row(_?number)?", re.IGNORECASE)


@cache
def hints() -> dict[str, Any]:
    """configs/starting/names.yaml."""
    return shipped_yaml("starting", "names")


class Column:
    """One column of some rows.

    filled: its values that are not empty; share: of the rows that have one. lists: those that are lists, also as a text
    writes them. texts: those that are texts. has_names: whether numbers of classes have names in the data.
    """

    def __init__(self, name: str, values: list[Any]):
        self.name, self.size = name, len(values)
        self.filled = [list_in(getattr(value, "class_name", value)) for value in values if not is_empty(value)]
        self.share, self.has_names = len(self.filled) / self.size, any(hasattr(value, "class_name") for value in values)
        self.lists = self._nearly_all([value for value in self.filled if isinstance(value, list)])
        self.texts = self._nearly_all([value for value in self.filled if isinstance(value, str)])
        numbers = map(as_number, self.filled)
        self.numbers = self._nearly_all([number for number in numbers if number is not None])
        self.are_whole = all(number == int(number) for number in self.numbers)

    def _nearly_all(self, values: list[Any]) -> list[Any]:
        """The values, where nearly all of the column are among them, else []."""
        return values if len(values) >= 0.95 * len(self.filled) else []

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each value is there; of lists each of their items."""
        items = [item for value in self.lists for item in value] or self.filled
        return Counter(" ".join(str(item).split()) for item in items if not isinstance(item, dict | list | bytes))

    @cached_property
    def words(self) -> float:
        """Words of a text, or of an item of lists, on average."""
        some = self.texts[:500] or list(self.counts)[:500] or [""]
        return sum(len(text.split()) + len(UNSPACED.findall(text)) / 2 for text in some) / len(some)

    @cached_property
    def parts(self) -> tuple[set[str], str | None]:
        """(classes of which each value has several, the name of the sign between them in a text; None: in lists)."""
        if self.lists:
            comes_again = 1 < len(self.counts) <= sum(self.counts.values()) / 2 + 1
            are_sets = all(len(value) == len({*map(str, value)}) for value in self.lists)  # else of several people
            return ({*self.counts} if comes_again and are_sets else set()), None
        for name, sign in SIGNS.items() if not self.numbers else ():  # 3,5 is one number
            cells = [[part.strip() for part in text.split(sign)] for text in self.texts]
            parts = {part for cell in cells for part in cell}
            comes_again = 2 * len(parts) <= max(len(cells), 5) and len(parts) < len(self.counts)
            if comes_again and sum(map(len, cells)) > 1.2 * len(cells) and max(map(len, parts)) <= LONGEST_CLASS:
                return parts, name
        return set(), None

    @cached_property
    def is_aside(self) -> bool:
        """Whether it is no content: ids, dates, addresses, one value alone, hardly any value."""
        is_one = len(self.counts) < 2 < self.size and not self.lists
        if self.share < 0.1 or is_one or self._nearly_all([text for text in self.texts if ASIDE.fullmatch(text)]):
            return True
        all_differ = not self.lists and len(self.counts) > 0.95 * len(self.filled)
        rise = self.are_whole and len(self.numbers) > 5 and self.numbers == sorted(self.numbers)
        in_order = rise and not self.hint("labels")
        return all_differ and (in_order or (IDS.fullmatch(self.name) is not None and self.words < 1.5))

    @cached_property
    def is_prose(self) -> bool:
        """Whether it holds texts of several words, most of them different."""
        several = self.words >= 12 or (self.words >= 2.5 and len(self.counts) >= 0.2 * len(self.filled))
        return bool(self.texts) and not self.numbers and not self.is_aside and several

    @cached_property
    def is_class(self) -> bool:
        """Whether few short values come again and again."""
        if self.is_aside or not self.counts or self.lists or (self.words >= 7 and not self.has_names):
            return False
        most = MOST_NUMBERS if self.numbers else MOST_CLASSES
        is_few = 2 * len(self.counts) <= max(len(self.filled), 5)
        is_few |= self.hint("labels") == 3 and not self.numbers and len(self.counts) < len(self.filled)
        return is_few and self.are_whole and len(self.counts) <= most and max(map(len, self.counts)) <= LONGEST_CLASS

    def hint(self, kind: str) -> int:
        """How much a word in its name says that it is of a kind in names.yaml: 3 for the likeliest, 0 for nothing."""
        name = re.sub(r"([a-z])([A-Z])", r"\1_\2", self.name.rpartition(".")[2]).lower()
        found = (rank for rank, words in enumerate(hints()[kind]) if re.search(rf"(\b|_)({words})", name))
        return 3 - next(found, 3)

    @cached_property
    def language(self) -> str | None:
        """The code of its language, by its name, its script or its most frequent words; None: it is not told."""
        languages = {code: (names.split(), words.split()) for code, (names, words) in hints()["languages"].items()}
        name = self.name.rpartition(".")[2].lower()
        named = next((code for code, (names, _) in languages.items() if name in (code, *names)), None)
        text = " ".join(self.texts[:200])[:20_000].lower()
        scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha())
        script = "HIRAGANA" if scripts["HIRAGANA"] else next((name for name, _ in scripts.most_common(1)), "LATIN")
        if named is not None or script != "LATIN":
            return named or hints()["scripts"].get(script.partition("-")[0])
        words = Counter(re.findall(r"\w+", text))
        found = {code: sum(words[word] for word in frequent) for code, (_, frequent) in languages.items()}
        best = max(found, key=found.__getitem__)
        return best if found[best] > 0.06 * words.total() else None


class Table:
    """Some rows, spread over all there are, and their columns. number: of the first MOST_ROWS those that can be read.
    sentence_field: the column by which rows of a word each were joined.

    Raises UserError where there are none, or fewer than rows that cannot be read.
    """

    def __init__(self, rows: Iterable[dict[str, Any] | UserError], name: str, sentence_field: str | None = None):
        self.rows, self.number, self.sentence_field, step, faults = [], 0, sentence_field, 1, []
        for row in islice(rows, MOST_ROWS):
            if isinstance(row, UserError):
                faults.append(row)
                continue
            self.rows += [row] if self.number % step == 0 else []
            self.number += 1
            if len(self.rows) > KEPT:
                self.rows, step = self.rows[::2], 2 * step
        if len(faults) > self.number:
            raise faults[0]
        if not self.rows:
            raise UserError(f"{name} holds no row")
        names = dict.fromkeys(name for row in self.rows[:200] for name in names_of(row))
        self.columns = {name: Column(name, [value_of(row, name) for row in self.rows]) for name in names}

    def names_of_values(self) -> list[str] | None:
        """Names for the columns, where those that the data give are values of a row; None: they are names.

        Raises UserError where the first line is a title.
        """
        columns = list(self.columns.values())
        unnamed = [one for one in columns if re.fullmatch(r"|column \d+", one.name) and one.share > 0.5]
        if columns[0].name and 2 * len(unnamed) >= len(columns):
            named = f"the first line names {columns[0].name!r} and leaves others without a name"
            raise UserError(f"{named}; delete the lines above that which names the columns")
        prose = [column for column in columns if column.is_prose]
        is_class_named = any(column.is_class and column.name in column.counts for column in columns)
        if not is_class_named and not (prose and all(len(column.name.split()) > 3 for column in prose)):
            return None
        names: list[str] = []
        for column in columns:
            kind = "label" if column.is_class else "text" if prose == [column] else "column"
            name = column.language if column.is_prose and column.language else kind
            names.append(name if name not in names else f"{name}_{len(names)}")
        return names

    def content(self) -> list[Column]:
        return [column for column in self.columns.values() if not column.is_aside]


def names_of(row: dict[str, Any]) -> list[str]:
    """The columns of a row and those within dicts, but for images, which have bytes; those in lists by names.yaml."""
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
