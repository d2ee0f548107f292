"""Any labelled task as text from text (T5, Raffel et al. 2020, section 2.4): the answer is written, not chosen."""

import re
import string
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..data.account import Account
from ..data.cells import kind_of
from ..data.rows import Rows
from ..errors import UserError
from ..metrics import check_metrics
from ..plugins import METRICS, register_objective
from ..positions import UNLIMITED
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from .base import refuse_idle
from .data import Data
from .example_reads import ReadsExamples
from .label_values import Classes, check_names, number_of
from .showing import show_source_and_target
from .tokens import train_or_load
from .writing import (
    SOURCE_AND_TARGET,
    LearnsToWrite,
    Pairs,
    TextScores,
    WritesTexts,
    WritingSettings,
    WritingTask,
    batches_of_pairs,
    check_writer,
    pair_collator,
    stored_pairs,
    words_of_pairs,
)

# Kind of answers -> the metrics that are reported where the recipe names none.
USUAL_METRICS = {"texts": ["exact_match"], "classes": ["accuracy"], "numbers": ["pearson", "spearman"]}
NO_NUMBER = -1.0  # counts in place of an answer that is no number, as in T5's code


@dataclass
class AnswerSettings(ObjectiveSettings):
    """What is read, and what has to be written."""

    source: str | None = doc(
        "what the model reads: a prefix, and columns in braces, such as 'sst2 sentence: {sentence}'"
    )
    target_field: str | None = doc("column that holds the answer: a text, a class or a number")
    answers: Literal["texts", "classes", "numbers"] = doc("what the answers are; the metrics compare these", "texts")
    label_names: list[str] | None = doc(
        "classes: the words that are written, in the order of the classes' numbers; null: taken from the data"
    )
    step: float = doc("numbers: written as the nearest multiple of this", 0.2, above=0)


@dataclass
class TextToTextSettings(WritingSettings, AnswerSettings):
    """The settings of one task as text from text."""


@dataclass(frozen=True)
class Answerables:
    """The classes of a task whose answers are classes, as texts.

    classes: of the data. written: {a class's name as the tokenizer decodes it: the class}.
    """

    classes: Classes
    written: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return self.classes.names


class ReadsTemplates(ReadsExamples):
    """Texts that a template makes of columns, and answers as texts."""

    legend = SOURCE_AND_TARGET

    def columns(self) -> dict[str, str]:
        names = source_columns(self.settings.source)
        fields = {"source" if number == 0 else f"source.{number}": name for number, name in enumerate(names)}
        return fields | {"target_field": self.settings.target_field}

    def asked_columns(self, there=None) -> dict[str, str]:
        *sources, _ = self.columns().items()
        return dict(sources)

    def texts(self, source, labels: Answerables | None = None):
        from ..data.examples import ExampleTexts

        def render(place: str, row: dict) -> list[str]:
            return [self.read(row, place), self._answer(labels, row, place)[0]]

        return ExampleTexts(source, render, {"rendered": self._key(labels)})

    def find_classes(self, sources: dict, cache: Path) -> Answerables | None:
        """The classes where answers are classes. Raises UserError."""
        if self.settings.answers != "classes":
            return None
        column = self.settings.target_field
        field = f"task.target_field={column!r}"
        return Answerables(Classes(field, column, sources, cache, self.settings.label_names))

    def prepare(self, sources: dict, cache: Path, progress: bool, tokenizer: Any = None) -> Data:
        """Raises UserError for an answer that is no class, and for a tokenizer that cannot write one."""
        labels = self.find_classes(sources, cache)
        self.objective.check_metrics(labels and labels.names)
        tokenizer = train_or_load(self.objective, self.texts(sources["train"], labels), cache, progress, tokenizer)
        if tokenizer.model_max_length > UNLIMITED:
            tokenizer.model_max_length = self.settings.max_length
        check_writer(self.objective, tokenizer)
        if labels is not None:
            labels = replace(labels, written=names_as_written(labels.names, self.settings, tokenizer))
        return Data(self.objective, self, tokenizer, labels, sources=sources)

    def try_examples(self, examples: list, data: Data | None) -> None:
        labels = data and data.labels
        for place, row in examples:
            self.read(row, place)
            if labels is not None or self.settings.answers != "classes":
                self._answer(labels, row, place)
        if data is not None:
            for _ in self._batches(data, examples, Account()):
                pass

    def _key(self, labels: Answerables | None) -> list:
        section = self.settings
        return [section.source, section.answers, labels.names if labels else [], section.step]

    def rows(self, data: Data, source, split: str, cache: Path, progress: bool = False) -> Rows:
        return stored_pairs(self, data, source, split, cache, self._key(data.labels))

    def _batches(self, data: Data, examples, account: Account):
        def texts_of(batch: list) -> tuple[list[str], list[str], list[str]]:
            answers = [self._answer(data.labels, row, place, account) for place, row in batch]
            read = [self.read(row, place) for place, row in batch]
            return read, [written for written, _ in answers], [true for _, true in answers]

        return batches_of_pairs(self.settings, data.tokenizer, examples, texts_of)

    def read(self, row: dict, place: str) -> str:
        """The text that the model reads for an example.

        Raises UserError for a column that holds neither text nor a number, and where all columns are empty: one of
        several may be, such as the input of an instruction that needs none.
        """
        pieces, columns = [], source_columns(self.settings.source)
        for literal, column, _, _ in string.Formatter().parse(self.settings.source):
            pieces.append(literal)
            if column is not None:
                value = row[column]
                if not isinstance(value, str | int | float) or isinstance(value, bool):
                    raise UserError(f"task.source: {place} holds {kind_of(value)} in {column!r}, not text")
                pieces.append(str(value))
        if not any(str(row[column]).strip() for column in columns):
            names = " and ".join(map(repr, columns))
            raise UserError(f"task.source: {place} holds an empty text in {names}; remove the example")
        return "".join(pieces)

    def _answer(
        self, labels: Answerables | None, row: dict, place: str, account: Account | None = None
    ) -> tuple[str, str]:
        """(text to write for an example, text that the model's answer is compared with). Raises UserError."""
        section, column = self.settings, self.settings.target_field
        value, field = row[column], f"task.target_field={column!r}"
        if section.answers == "texts":
            text = self.text_in(row, column, "target_field", place)
            return text, text
        if section.answers == "numbers":
            number = number_of(value, field, place, account)
            return written_number(number, section.step), repr(number)
        name = labels.names[labels.classes.number(value, place, account)]
        return name, name

    def collator(self, data: Data, packed: bool):
        return pair_collator(data.tokenizer)

    def describe(self, data: Data, rows: Rows) -> str:
        return words_of_pairs(rows)

    def show(self, console, data: Data, rows: Rows, number: int, row: dict) -> None:
        show_source_and_target(console, data, rows, number, row)


class AnswerScores(TextScores):
    """Metrics of what the written texts mean: texts, classes or numbers."""

    def meant(self, predictions: list[str], references: list[str]) -> tuple[list, list]:
        if self.settings.answers == "texts":
            return predictions, references
        if self.settings.answers == "numbers":
            return [read_number(text) for text in predictions], [float(text) for text in references]
        true = [self.data.labels.names.index(text) for text in references]
        return [self._class_written(text, right) for text, right in zip(predictions, true)], true

    def named(self, value: Any) -> Any:
        return self.data.labels.names[value] if self.settings.answers == "classes" else value

    def _class_written(self, text: str, right: int) -> int:
        """The class whose name was written; a wrong class if the text names none."""
        return self.data.labels.written.get(text.strip(), (right + 1) % len(self.data.labels.names))


@register_objective
class TextToText(WritingTask):
    """Any labelled task as text from text (T5, Raffel et al. 2020): a class's word, a rounded number, or a text.

    Metrics compare what the written texts mean: an answer that is no class counts as a wrong class, one that is no
    number as -1. Numbers are compared with those of the data, not with the rounded ones. `prepare` and `rows` raise
    UserError for an answer in the data that is no class, or no number.

    names_metrics: whether an empty list of metrics is meant: a saved recipe has one where none were named.
    """

    name = "text_to_text"
    Settings = TextToTextSettings
    Reads, Learns, Scores, Answers = ReadsTemplates, LearnsToWrite, AnswerScores, WritesTexts
    words = replace(WritingTask.words, sample="answer to {prompt!r}", hub_task="text2text-generation")

    def __init__(self, recipe, names_metrics: bool = False):
        super().__init__(recipe)
        self.names_metrics = names_metrics

    @property
    def asks_for(self) -> tuple[str, str] | None:
        return ("texts", self.settings.target_field) if self.settings.answers == "texts" else None

    @property
    def metrics(self) -> list[str]:
        """The recipe's metrics, or if it names none the usual ones for the kind of answers."""
        named = self.recipe.evaluation.metrics
        return named if named or self.names_metrics else USUAL_METRICS[self.settings.answers]

    @classmethod
    def metric_names(cls, answers: Collection[str] = tuple(USUAL_METRICS)) -> list[str]:
        return [name for name, row in METRICS.items() if row.compares in answers]

    def check_metrics(self, names=None) -> None:
        names = names or self.settings.label_names
        fitting = self.metric_names([self.settings.answers])
        check_metrics(self.metrics, fitting, self.setting, len(names) if names else None)

    def check(self) -> None:
        section = self.settings
        for name in ("source", "target_field"):
            if not getattr(section, name):
                raise UserError(f"task.{name} is not set; text_to_text needs what is read and the column of the answer")
        try:
            columns = source_columns(section.source)
        except ValueError as error:
            raise UserError(f"task.source={show(section.source)} has braces that do not match ({error})") from None
        if not columns or "" in columns:
            raise UserError(
                f"task.source={show(section.source)} names no column; write one in braces, such as {{text}}"
            )
        answers = f"task.answers={section.answers}"
        if section.answers != "classes":
            refuse_idle(self, ["label_names"], answers, "task.answers=classes")
        if section.answers != "numbers":
            refuse_idle(self, ["step"], answers, "task.answers=numbers")
        self.check_search()
        check_names(section.label_names)
        super().check()


def names_as_written(names: list[str], settings: WritingSettings, tokenizer) -> dict[str, int]:
    """{a class's name as the tokenizer decodes it: the class}, for example in lower case, or with other spaces.

    Raises UserError for a name that becomes empty, or equal to that of another class.
    """
    classes: dict[str, int] = {}
    for number, (name, ids) in enumerate(zip(names, Pairs(settings, tokenizer).labels(names))):
        written = tokenizer.decode(ids, skip_special_tokens=True).strip()
        if not written or written in classes:
            other = f"as it writes {names[classes[written]]!r}" if written else "which says nothing"
            raise UserError(
                f"task.label_names: the tokenizer writes {name!r} as {written!r}, {other}; give other names, or "
                f"another tokenizer"
            )
        classes[written] = number
    return classes


def source_columns(template: str) -> list[str]:
    """The columns in braces, each once, in their order. Raises ValueError for braces that do not match."""
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name is not None))


def written_number(value: float, step: float) -> str:
    """The nearest multiple of `step`, with as many decimals as it has: 3.71 in steps of 0.2 is 3.8."""
    decimals = len(f"{step:.10f}".rstrip("0").partition(".")[2])
    return f"{round(value / step) * step + 0.0:.{decimals}f}"


def read_number(text: str) -> float:
    """The number in a text, NO_NUMBER if it is none or infinite. Some tokenizers put spaces at a sign or point."""
    try:
        value = float(re.sub(r"(?<=[-.])\s+|\s+(?=\.)", "", text))
    except ValueError:
        return NO_NUMBER
    return value if value - value == 0 else NO_NUMBER
