"""Any labelled task as text from text (T5, Raffel et al. 2020, section 2.4): the answer is written, not chosen."""

import re
import string
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..data.cells import kind_of
from ..data.documents import Corpus
from ..errors import UserError
from ..metrics import check_metrics
from ..plugins import METRICS, register_objective
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from .label_values import Classes, check_names, number_of
from .translation import Translation, WritingSettings

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


@register_objective
class TextToText(Translation):
    """Any labelled task as text from text (T5, Raffel et al. 2020): a class's word, a rounded number, or a text.

    Metrics compare what the written texts mean: an answer that is no class counts as a wrong class, one that is no
    number as -1. Numbers are compared with those of the data, not with the rounded ones. `prepare` and `rows` raise
    UserError for an answer in the data that is no class, or no number.
    """

    name = "text_to_text"
    Settings = TextToTextSettings
    default_metrics = ()  # by the kind of answers
    hub_task = "text2text-generation"
    sample_words = "answer to"
    names_metrics = False  # whether an empty list of metrics is meant: a saved recipe has one where none were named

    @property
    def asks_for(self) -> str:
        return "texts" if self.settings.answers == "texts" else ""

    @property
    def metrics(self) -> list[str]:
        """The recipe's metrics, or if it names none the usual ones for the kind of answers."""
        named = self.recipe.evaluation.metrics
        return named if named or self.names_metrics else USUAL_METRICS[self.settings.answers]

    @classmethod
    def metric_names(cls, answers: Collection[str] = tuple(USUAL_METRICS)) -> list[str]:
        return [name for name, row in METRICS.items() if row.compares in answers]

    def check_metrics(self) -> None:
        names = self.label_names or self.settings.label_names
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
            self.refuse_idle(["label_names"], answers, "task.answers=classes")
        if section.answers != "numbers":
            self.refuse_idle(["step"], answers, "task.answers=numbers")
        self.check_search()
        check_names(section.label_names)
        super(Translation, self).check()

    # ---- data

    def columns(self) -> dict[str, str]:
        names = source_columns(self.settings.source)
        fields = {"source" if number == 0 else f"source.{number}": name for number, name in enumerate(names)}
        return fields | {"target_field": self.settings.target_field}

    def corpus(self, source) -> Corpus:
        from ..data.examples import ExampleTexts

        def render(place: str, row: dict) -> list[str]:
            return [self.read(row, place), self.answer(row, place)[0]]

        return ExampleTexts(source, render, {"rendered": self.encoding_key()})

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        self.find_classes(splits, cache)
        self.check_metrics()
        super().prepare(splits, cache, progress)
        if self.settings.answers == "classes":
            self._written = self.names_as_written()

    def find_classes(self, splits, cache: Path) -> None:
        """Read the names of the classes where answers are classes. Raises UserError."""
        if self.settings.answers == "classes":
            column = self.settings.target_field
            field = f"task.target_field={column!r}"
            self.classes = Classes(field, column, splits, cache, self.settings.label_names)
            self.label_names = self.classes.names

    def names_as_written(self) -> dict[str, int]:
        """{a class's name as the tokenizer decodes it: the class}, for example in lower case, or with other spaces.

        Raises UserError for a name that becomes empty, or equal to that of another class.
        """
        classes: dict[str, int] = {}
        for number, (name, ids) in enumerate(zip(self.label_names, self.labels_of(self.label_names))):
            written = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
            if not written or written in classes:
                other = f"as it writes {self.label_names[classes[written]]!r}" if written else "which says nothing"
                raise UserError(
                    f"task.label_names: the tokenizer writes {name!r} as {written!r}, {other}; give other names, or "
                    f"another tokenizer"
                )
            classes[written] = number
        return classes

    def encoding_key(self) -> list:
        section = self.settings
        return [section.source, section.answers, self.label_names, section.step]

    def texts_of(self, batch: list) -> tuple[list[str], list[str], list[str]]:
        answers = [self.answer(row, place) for place, row in batch]
        read = [self.read(row, place) for place, row in batch]
        return read, [written for written, _ in answers], [true for _, true in answers]

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

    def answer(self, row: dict, place: str) -> tuple[str, str]:
        """(text to write for an example, text that the model's answer is compared with). Raises UserError."""
        section, column = self.settings, self.settings.target_field
        value, field = row[column], f"task.target_field={column!r}"
        if section.answers == "texts":
            text = self.text_in(row, column, "target_field", place)
            return text, text
        if section.answers == "numbers":
            number = number_of(value, field, place)
            return written_number(number, section.step), repr(number)
        name = self.label_names[self.classes.number(value, place)]
        return name, name

    def asked(self, row: dict, place: str) -> str:
        return self.read(row, place)

    # ---- measuring

    def measure_texts(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        if self.settings.answers == "texts":
            predicted, true = predictions, references
        elif self.settings.answers == "numbers":
            predicted, true = [read_number(text) for text in predictions], [float(text) for text in references]
        else:
            true = [self.label_names.index(text) for text in references]
            predicted = [self.class_written(text, right) for text, right in zip(predictions, true)]
        return self.compare(predicted, true)

    def named(self, value: Any) -> Any:
        return self.label_names[value] if self.settings.answers == "classes" else value

    def class_written(self, text: str, right: int) -> int:
        """The class whose name was written; a wrong class if the text names none."""
        return self._written.get(text.strip(), (right + 1) % len(self.label_names))


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
