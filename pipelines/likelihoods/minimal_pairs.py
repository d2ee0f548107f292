"""Minimal pairs: a good and a bad text, of which the model should find the good one likelier (Warstadt et al. 2020)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.cells import filled_text_of
from ..data.documents import UTF8, Limits
from ..data.examples import ExampleFiles
from ..data.file_formats import encoding_notes, format_of
from ..data.hub_datasets import HubSource
from ..data.patterns import find_files
from ..data.remote_files import with_local_copies
from ..errors import UserError, did_you_mean, loading
from ..lazy import datasets
from ..metrics import wilson
from ..objectives.scores import evenly_spread
from ..recipes.data_section import SourceSection
from ..recipes.schema import DataSection, MinimalPairsSettings
from ..words import say

USUAL = {"good_field": ("sentence_good", "good"), "bad_field": ("sentence_bad", "bad")}
Rows = Callable[[list[str]], Iterable[tuple[str, Any]]]
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
    available, rows = _files(settings, where) if settings.files is not None else _hub(settings, where)
    good_field, bad_field, *group_fields = columns = _columns(settings, available, where)
    good, bad, groups = [], [], {column: [] for column in group_fields}
    for place, row in rows(columns):
        if isinstance(row, UserError):
            raise row
        good.append(filled_text_of(row, good_field, "good_field", place))
        bad.append(filled_text_of(row, bad_field, "bad_field", place))
        for column, values in groups.items():
            values.append(None if row[column] is None else str(row[column]))
    if not good:
        raise UserError(f"{where}: {settings.files or settings.dataset} holds no pair")
    chosen = evenly_spread(len(good), settings.max_pairs or len(good))
    good, bad = ([values[number] for number in chosen] for values in (good, bad))
    groups = {column: [values[number] for number in chosen] for column, values in groups.items()}
    files = [settings.files] if isinstance(settings.files, str) else settings.files
    return MinimalPairs(settings.dataset or ", ".join(files), good, bad, groups, settings)


class PairFiles(ExampleFiles):
    """Files of pairs, whose columns are not a task's."""

    def missing_column(self, there: list[str], place: str) -> UserError | None:
        for column in self.columns:
            if column not in there:
                return UserError(f"{self.field}: {place} has no column {column!r}{did_you_mean(column, there)}")
        return None


def _files(settings: MinimalPairsSettings, where: str) -> tuple[list[str], Rows]:
    """(columns of the first file, function of columns -> (place, row) of each pair)."""
    field, data = f"{where}.files", DataSection()
    limits = Limits(data.max_document_bytes, data.max_line_bytes, UTF8)
    patterns = with_local_copies(settings.files, field, None)
    paths = list(find_files(field, patterns))
    path = paths[0]
    available = None if format_of(path) is None else format_of(path).columns(field, path)
    if available is None:
        first = next(iter(ExampleFiles(str(path), {}, limits, field).items()), (None, {}))[1]
        if isinstance(first, UserError):
            raise first
        available = list(first)
    say(encoding_notes(field, paths, limits))
    return available, lambda columns: PairFiles(patterns, dict(zip(columns, columns)), limits, field).items()


def _hub(settings: MinimalPairsSettings, where: str) -> tuple[list[str], Rows]:
    """As _files, for the data set's configurations one after the other."""
    field, limits = f"{where}.dataset", Limits(DataSection().max_document_bytes, DataSection().max_line_bytes)
    names = settings.config_names
    if names is None:
        with loading(f"{field}={settings.dataset!r}"):
            names = datasets.get_dataset_config_names(settings.dataset)
    sections = {name: SourceSection(dataset=settings.dataset, config_name=name, split=settings.split) for name in names}
    tables = {name: HubSource(each, limits, "split", None, where=where).rows for name, each in sections.items()}

    def rows(columns: list[str]) -> Iterator[tuple[str, dict]]:
        for name, table in tables.items():
            for number, row in enumerate(table.select_columns(columns)):
                yield f"{settings.dataset} ({name}), row {number}", row

    return next(iter(tables.values())).column_names, rows


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
