"""Labels of the data as class numbers or as plain numbers: how people write them, and notes on rare classes."""

import ast
import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ..data.account import Account
from ..data.account_words import listed
from ..errors import UserError, did_you_mean
from ..recipes.types import show


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


FEW = 10  # rows; a class that has fewer may be called rare


def the_value(value: Any, place: str) -> list[tuple[str, Any]]:
    """The `classes_in` of columns that hold one class."""
    return [(place, value)]


class Classes:
    """The classes in a column of the data: their `names`, and the number of each name, `numbers`.

    field: how errors name the column, task.label_field='label'. given: the names; None: the class names stored with the
    data, else the column's strings in alphabetical order, else LABEL_0, LABEL_1, ... for the numbers 0 to n, else the
    numbers themselves; of all splits, as a rare class may be in only one of them. classes_in: (value, place) ->
    (place, class) of each class in a column's value. origin: whose the given names are; then whose all are. meaning: of
    values. numbered: whether the numbers 0 to n in the data stand for the names in their order.
    """

    def __init__(
        self,
        field: str,
        column: str,
        splits,
        cache: Path,
        given: list[str] | None = None,
        classes_in: Callable[[Any, str], Iterable[tuple[str, Any]]] = the_value,
        origin: str = "of task.label_names",
        meaning: Meaning = Meaning(),  # noqa: B008 (frozen)
    ):
        self.meaning = meaning
        stored = [examples.source.class_names(column) for examples in splits.values()]
        of_data = list(dict.fromkeys(meaning(name) for names in stored for name in names or []))
        self.field, self.numbered = field, given is not None or stored[0] is not None
        found = of_data if stored[0] is not None else []
        self.origin = origin if given is not None else "of the data set" if found else "of the column"
        self.names = given or found or _names_in_data(field, column, splits, cache, classes_in, meaning)
        self.alike = {alike(name): number for number, name in enumerate(self.names)} if meaning.merges else {}
        self.numbers = {name: number for number, name in enumerate(self.names)}
        # Given names for those stored with the data, where one is called otherwise: its place tells which.
        others = ((old, new) for old, new in zip(of_data, self.names) if old not in self.numbers and new not in of_data)
        self.renamed = dict(others)
        if {name.lower() for name in self.names} == {"false", "true"}:  # booleans, and as other programs write them
            self.numbers |= {write(name): i for i, name in enumerate(self.names) for write in (str.title, str.lower)}
        values = [amount_of(name) for name in self.names]
        self.are_numbers = None not in values or any(name.isdecimal() for name in self.names)
        times = Counter(values)
        self.of_value = {value: number for number, value in enumerate(values) if times[value] == 1}

    def number(self, value: Any, place: str, account: Account | None = None) -> int:
        """The number of the class that a label means; counts how that is written. Raises UserError.

        It is the class of that name, for which a number may stand in a file that names its classes. Where the names are
        numbers, 01 and 1.0 mean the class 1; else a number is the class's own.
        """
        is_unnamed = are_unnamed(self.names)
        if not is_unnamed:
            value = getattr(value, "class_name", value)
        number = self._number(self.meaning(value), place)
        name, written = self.names[number], str(value)
        if account is not None:
            account.used("class name", self.origin)
            if written != name and not (is_unnamed and isinstance(value, int)):
                is_usual = not isinstance(value, str) or written in self.renamed or written in self.meaning.names
                account.read_as("class", written, name, is_usual=is_usual)
        return number

    def has(self, name: str) -> bool:
        """Whether it is a class, in whatever way it is written."""
        return self.meaning(name) in self.numbers or alike(self.meaning(name)) in self.alike

    def _number(self, value: Any, place: str) -> int:
        if isinstance(value, str | int | float):
            name = self.renamed.get(str(value), str(value))
            if name in self.numbers:
                return self.numbers[name]
            if alike(name) in self.alike:
                return self.alike[alike(name)]
        number = amount_of(value)
        if self.are_numbers and number is not None:
            if number in self.of_value:
                return self.of_value[number]
            raise UserError(
                f"{self.field}: {place} holds {value!r}, which equals none of the classes {listed(self.names)} "
                f"(numbers count classes only where these have other names)"
            )
        check_class(value, self.field, place)
        if number is None or number != int(number) or number < 0:
            near = did_you_mean(str(value), self.names) or f"; there are {len(self.names)} classes"
            raise UserError(f"{self.field}: {place} is of the unknown class {value!r}{near}")
        if number >= len(self.names):
            raise UserError(
                f"{self.field}: {place} holds {value}, but the classes are numbered 0 to {len(self.names) - 1} "
                f"({', '.join(self.names[:8])})"
            )
        return int(number)


def amount_of(label: Any) -> float | None:
    """The number that a label is or writes; None: it is no finite number."""
    if isinstance(label, str):
        label = float(label) if re.fullmatch(r"\s*[+-]?\d+(\.\d*)?\s*", label) else None
    with suppress(OverflowError):  # of a whole number with hundreds of digits
        return float(label) if isinstance(label, int | float) and math.isfinite(label) else None


def _names_in_data(field: str, column: str, splits, cache: Path, classes_in: Callable, meaning: Meaning) -> list[str]:
    from ..data.examples import examples_fingerprint
    from ..storage.cache import cached_folder, sha

    folder = cached_folder(
        cache,
        "classes",
        sha([[examples_fingerprint(examples) for examples in splits.values()], column, *meaning.identity()]),
        lambda work: (work / "names.json").write_text(json.dumps(_scan(field, column, splits, classes_in, meaning))),
        files={path: state for examples in splits.values() for path, state in examples.files.items()},
    )
    return json.loads((folder / "names.json").read_text())


def _scan(field: str, column: str, splits, classes_in: Callable, meaning: Meaning) -> list[str]:
    values, cells, kind = Counter(), Counter(), None  # as they are written
    for split, examples in splits.items():
        for place, row in examples.only(column):
            for where, value in classes_in(row[column], place):
                if kind is not False:  # numbers without names in the first file have none in others either
                    value = getattr(value, "class_name", value)
                check_class(value, field, where)
                if kind not in (None, isinstance(meaning(value), str)):
                    raise UserError(f"{field}: {where} holds {value!r}, but others before it are of another type")
                kind = isinstance(meaning(value), str)
                counts = cells if isinstance(value, Cell) else values
                counts[value if isinstance(value, str) else int(value)] += 1
        classes = _classes_of(values + parts_of(cells), meaning)
        if split == "train" and len(classes) < 2:
            only = f"has the class {classes.pop()!r}" if classes else "has no class"
            raise UserError(f"{field}: every training example {only}; it takes two to tell apart")
    known = {str(value) for value in values + parts_of(cells)}
    like = {alike(name) for name in known} if meaning.merges else ()
    unknown = next((key for key in meaning.names if key not in known and alike(key) not in like), None)
    if unknown is not None:
        raise UserError(f"task.label_map: no label is {unknown!r}{did_you_mean(unknown, known)}")
    if kind:
        return sorted(classes)
    counted = classes == set(range(len(classes)))
    return [f"LABEL_{number}" if counted else str(number) for number in sorted(classes)]


def _classes_of(values: Counter, meaning: Meaning) -> set:
    """What values mean, of names that are alike the most frequent one where they are merged."""
    counts = Counter()
    for value, number in values.items():
        counts[meaning(value)] += number
    groups = groups_alike(counts) if meaning.merges else []
    return (set(counts) - set(chain(*groups))) | {" ".join(group[0].split()) for group in groups}


def check_class(value: Any, field: str, where: str) -> None:
    """Raise UserError for a label that cannot be the name or number of a class."""
    if not isinstance(value, str | int) and not (isinstance(value, float) and value.is_integer()):
        raise UserError(f"{field}: {where} holds {held(value)}, which is no class (a whole number or a name)")
    if isinstance(value, str) and not value.strip():
        raise UserError(f"{field}: {where} holds an empty class; remove the example")
    if not isinstance(value, str) and value < 0:
        raise UserError(f"{field}: {where} holds {value}; classes are numbered from 0")


def check_names(names: list[str] | None) -> None:
    """Raise UserError for task.label_names that are not two or more different names."""
    if names is not None and (len(names) < 2 or len(set(names)) < len(names)):
        raise UserError(f"task.label_names={show(names)} must be two or more different names")


def are_unnamed(names: list[str]) -> bool:
    """Whether the names are LABEL_0, LABEL_1, ..., by which transformers calls classes without names."""
    return names == [f"LABEL_{number}" for number in range(len(names))]


def held(value: Any) -> str:
    """How errors write a value that is no label."""
    return "null" if value is None else repr(value)


def number_of(value: Any, field: str, place: str, account: Account | None = None) -> float:
    """The number that a value is, or that its text is (CSV files). Raises UserError, which names field and place."""
    number = value
    if isinstance(value, str):
        count_text(account)
        with suppress(ValueError):
            number = float(value)
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not math.isfinite(number):
        raise UserError(f"{field}: {place} holds {held(value)}, which is no finite number")
    return float(number)


def count_text(account: Account | None) -> None:
    """Count a label that is a number, and is written as a text."""
    if account is not None:
        account.read_as("label", "", "read from texts", is_usual=True)


def class_notes(split: str, counts: Mapping[str, int], may_be_stratified: bool) -> list[str]:
    """Sentences about missing and rare classes of a split. counts: {class: number of its rows}."""
    notes, missing = [], [repr(name) for name, number in counts.items() if not number]
    if missing:
        way_out = (
            "; data.stratify=true gives it a share of each class" if may_be_stratified and split != "train" else ""
        )
        effect = "never learned" if split == "train" else "not measured"
        notes.append(f"no row of the class {listed(missing)}, {effect} here{way_out}")
    for names in groups_alike(counts) if split == "train" else ():
        written = listed([f"{name!r} {counts[name]:,}" for name in names])
        notes.append(f"one class or several? {written}; task.merge_labels=true makes one of such names")
    few = min(FEW, sum(counts.values()) / max(1, len(counts)) / 2)
    rare = [f"{name!r} with {number:,}" for name, number in counts.items() if 0 < number < few]
    if rare and split == "train":
        notes.append(f"rare: {listed(rare)}")
    return notes
