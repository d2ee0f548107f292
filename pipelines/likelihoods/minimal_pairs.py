"""Minimal pairs: a good and a bad text, of which the model should find the good one likelier (Warstadt et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..data.account import Account
from ..data.account_words import unusual
from ..data.cells import filled_text_of
from ..data.documents import Limits
from ..data.file_reader import FileReader
from ..data.hub_reader import HubReader
from ..data.reader import ExampleView, Reader
from ..data.remote_files import with_local_copies
from ..data.rows import evenly_spread
from ..errors import UserError, did_you_mean, loading
from ..lazy import datasets
from ..metrics import wilson
from ..recipes.data_section import SourceSection
from ..recipes.schema import MINIMAL_PAIRS, DataSection, MinimalPairsSettings
from ..words import say

USUAL = {"good_field": ("sentence_good", "good"), "bad_field": ("sentence_bad", "bad")}
GROUPS = ("phenomenon", "linguistics_term", "paradigm", "UID")


@dataclass(frozen=True)
class MinimalPairs:
    """Pairs of texts as they are scored. name: of the data. groups: {column: its value for each pair, or None}."""

    name: str
    good: list[str]
    bad: list[str]
    groups: dict[str, list[str | None]]
    settings: MinimalPairsSettings

    def __len__(self) -> int:
        return len(self.good)

    def check(self, model, tokenizer) -> None:
        """Raise UserError where the model cannot score the texts as the settings say."""
        from .whole_texts import check_texts

        check_texts(model, tokenizer, self.texts(range(len(self))), self.settings.score, self.settings.add_bos)

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """The good and the bad text of some pairs, one after the other, each after the settings' `before`."""
        return [self.settings.before + text[number] for number in numbers for text in (self.good, self.bad)]

    def scores(self, model, tokenizer, numbers: list[int]) -> list[tuple[float, float]]:
        """The scores of the good and the bad text of some pairs, as text_scores gives them."""
        from .whole_texts import text_scores

        scores = text_scores(model, tokenizer, self.texts(numbers), self.settings.score, self.settings.add_bos)
        return list(zip(scores[::2], scores[1::2]))


def is_right(scores: tuple[float, float]) -> bool:
    """Whether the good text is likelier; a tie does not count."""
    good, bad = scores
    return good > bad


def share_right(right: list[bool]) -> dict[str, Any]:
    """{"share", "low", "high", "pairs"}: the share of right pairs, with its 95 % interval by Wilson."""
    share = sum(right) / len(right)
    low, high = wilson(share, len(right))
    return {"share": share, "low": low, "high": high, "pairs": len(right)}


def shares_of_groups(pairs: MinimalPairs, right: list[bool]) -> dict[str, dict[str, dict[str, Any]]]:
    """{column: {value: share_right of its pairs}}, values in the order of the data."""
    shares = {}
    for column, values in pairs.groups.items():
        of_value: dict[str, list[bool]] = {}
        for value, correct in zip(values, right, strict=True):
            if value is not None:
                of_value.setdefault(value, []).append(correct)
        shares[column] = {value: share_right(of_pairs) for value, of_pairs in of_value.items()}
    return shares


# ------------------------------------------------------------------------------------------------------- reading


def open_pairs(settings: MinimalPairsSettings, where: str = "evaluation.minimal_pairs") -> MinimalPairs:
    """The pairs that the settings name. where: the section, for errors.

    Raises UserError for missing files, data sets and columns, and for an empty text.
    """
    readers = _readers(settings, where)
    good_field, bad_field, *group_fields = columns = _columns(settings, _columns_of(readers[0]), where)
    say(unusual(sum((reader.account() for reader in readers), Account())))
    rows = []
    readers = [reader.seeing(reader.view.of(columns)) for reader in readers]
    for reader in readers:
        reader.check()
    for place, row in chain.from_iterable(reader.items() for reader in readers):
        if isinstance(row, UserError):
            raise row
        good = filled_text_of(row, good_field, "good_field", place)
        bad = filled_text_of(row, bad_field, "bad_field", place)
        rows.append([good, bad, *(None if row[column] is None else str(row[column]) for column in group_fields)])
    if not rows:
        raise UserError(f"{where}: {settings.files or settings.dataset} holds no pair")
    chosen = [rows[number] for number in evenly_spread(len(rows), settings.max_pairs or len(rows))]
    good, bad, *groups = map(list, zip(*chosen))
    files = [settings.files] if isinstance(settings.files, str) else settings.files
    return MinimalPairs(settings.dataset or ", ".join(files), good, bad, dict(zip(group_fields, groups)), settings)


class PairView(ExampleView):
    """Rows of pairs, whose columns are not a task's. where: the section or setting that names them."""

    def of(self, columns: list[str]) -> "PairView":
        return PairView(dict(zip(columns, columns)), self.limits, self.where)

    def lacks(self, field: str, column: str, there: list[str], place: str, noun: str) -> UserError:
        return UserError(f"{self.where}: {place} has no column {column!r}{did_you_mean(column, there)}")


def _readers(settings: MinimalPairsSettings, where: str) -> list[Reader]:
    """One reader of the files, or one of each configuration of the data set."""
    limits = Limits.of(DataSection())
    if settings.files is not None:
        field = f"{where}.files"
        return [FileReader(field, with_local_copies(settings.files, field, None), PairView({}, limits, field))]
    names, view = settings.config_names, PairView({}, limits, where)
    if names is None:
        with loading(f"{where}.dataset={settings.dataset!r}"):
            names = datasets.get_dataset_config_names(settings.dataset)
    readers = []
    for name in names:
        section = SourceSection(dataset=settings.dataset, config_name=name, split=settings.split)
        readers.append(HubReader(section, "split", view))
        readers[-1].place = f"{settings.dataset} ({name})"
    return readers


def are_pairs(file: str) -> bool:
    """Whether the columns of a file of rows are named as those of good and bad texts usually are."""
    there = _columns_of(_readers(MinimalPairsSettings(files=file), MINIMAL_PAIRS)[0])
    return all(not set(usual).isdisjoint(there) for usual in USUAL.values())


def _columns_of(reader: Reader) -> list[str]:
    """The columns of the data set, of the first file, or of its first row."""
    first = {} if (columns := reader.all_columns()) else next(reader.items(), ("", {}))[1]
    if isinstance(first, UserError):
        raise first
    return columns or list(first)


def _columns(settings: MinimalPairsSettings, there: list[str], where: str) -> list[str]:
    """The columns of the good text, of the bad text, and of the groups. Raises UserError for a missing one."""
    columns = []
    for field, usual in USUAL.items():
        setting = getattr(settings, field)
        column = setting or next((name for name in usual if name in there), usual[0])
        if column not in there:
            raise UserError(f"{where}.{field}={column}: no such column{did_you_mean(column, there)}")
        columns.append(column)
    groups = [name for name in GROUPS if name in there] if settings.group_fields is None else settings.group_fields
    for column in groups:
        if column not in there:
            raise UserError(f"{where}.group_fields: no column {column!r}{did_you_mean(column, there)}")
    return columns + groups
