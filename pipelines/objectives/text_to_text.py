"""Any labelled task as text from text (T5, Raffel et al. 2020, section 2.4): the answer is written, not chosen."""

import re
import string
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..data.account import Account
from ..data.cells import kind_of
from ..errors import UserError
from ..metrics import check_metrics
from ..plugins import METRICS, register_objective
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from .base import refuse_idle
from .example_reads import ReadsExamples
from .label_values import Classes, check_names, number_of
from .reads import label_column
from .writing import LearnsToWrite, Pairs, ReadsToWrite, TextScores, WritesTexts, WritingSettings, WritingTask

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

    classes: of the data. written: {a class's name as the tokenizer decodes it, for example in lower case, or with other
    spaces: the class}.
    """

    classes: Classes
    written: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return self.classes.names

    def written_by(self, tokenizer: Any, settings: WritingSettings) -> "Answerables":
        """The same with `written`. Raises UserError for a name that becomes empty, or equal to that of another."""
        classes: dict[str, int] = {}
        for number, (name, ids) in enumerate(zip(self.names, Pairs(settings, tokenizer).labels(self.names))):
            written = tokenizer.decode(ids, skip_special_tokens=True).strip()
            if not written or written in classes:
                other = f"as it writes {self.names[classes[written]]!r}" if written else "which says nothing"
                raise UserError(
                    f"task.label_names: the tokenizer writes {name!r} as {written!r}, {other}; give other names, or "
                    f"another tokenizer"
                )
            classes[written] = number
        return Answerables(self.classes, classes)


class AnswerScores(TextScores):
    """Metrics of what the written texts mean: texts, classes or numbers."""

    def meant(self, predictions: list[str], references: list[str]) -> tuple[list, list]:
        if self.settings.answers == "texts":
            return predictions, references
        if self.settings.answers == "numbers":
            return [read_number(text) for text in predictions], [float(text) for text in references]
        true = [self.data.labels.names.index(text) for text in references]
        classes, number = self.data.labels.written, len(self.data.labels.names)
        # A text that names no class counts as a wrong one.
        found = [classes.get(text.strip(), (right + 1) % number) for text, right in zip(predictions, true)]
        return found, true

    def named(self, value: Any) -> Any:
        return self.data.labels.names[value] if self.settings.answers == "classes" else value


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
    Reads, Learns, Scores, Answers = ReadsToWrite, LearnsToWrite, AnswerScores, WritesTexts
    words = replace(WritingTask.words, sample="answer to {prompt!r}", hub_task="text2text-generation")

    def __init__(self, recipe, names_metrics: bool = False):
        super().__init__(recipe)
        self.names_metrics = names_metrics

    # ---- an example

    def sources(self) -> dict[str, str]:
        names = source_columns(self.settings.source)
        return {"source" if number == 0 else f"source.{number}": name for number, name in enumerate(names)}

    def read(self, reads: ReadsExamples, row: dict, place: str) -> str:
        """Raises UserError for a column that holds neither text nor a number, and where all columns are empty.

        One of several may be, such as the input of an instruction that needs none.
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

    def answer(
        self, reads: ReadsExamples, row: dict, place: str, labels: Answerables | None, account: Account | None = None
    ) -> tuple[str, str]:
        section, column = self.settings, self.settings.target_field
        if section.answers == "texts":
            return super().answer(reads, row, place, labels)
        if section.answers == "numbers":
            number = number_of(row[column], f"task.target_field={column!r}", place, account)
            return written_number(number, section.step), repr(number)
        if labels is None:  # an example is tried before the classes are known
            return "", ""
        name = labels.names[labels.classes.number(row[column], place, account)]
        return name, name

    def find_classes(self, reads: ReadsExamples, sources: dict) -> Answerables | None:
        if self.settings.answers != "classes":
            return None
        column, field = label_column(self.settings)
        labels = Answerables(Classes(field, column, sources, reads.cache, self.settings.label_names))
        self.check_metrics(labels.names)
        return labels

    def encoding_key(self, labels: Answerables | None) -> list:
        section = self.settings
        return [section.source, section.answers, labels.names if labels else [], section.step]

    # ---- metrics

    @property
    def asks_for(self) -> str | None:
        return "texts" if self.settings.answers == "texts" else None

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

    # ---- the recipe

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
