"""Objectives that are not yet divided into parts: the interface as it was, and parts that hand each question to it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UserError
from ..plugins import TEACHERS
from ..words import counted
from . import answers, base, learns, reads, scores
from .data import Data
from .measuring import Measuring

if TYPE_CHECKING:
    from ..data.documents import Share
    from ..data.rows import Rows
    from .losses import OwnLoss


class OldReads(reads.Reads):
    def check_model(self):
        self.objective.before_training()

    def open(self):
        return self.objective.open()

    def texts(self, source):
        return self.objective.corpus(source)

    def prepare(self, sources, cache, progress, tokenizer=None):
        objective = self.objective
        if tokenizer is not None:
            objective.given_tokenizer = tokenizer
        if self.facts.measured is not None:
            objective.adopt(self.facts.measured, sources[self.facts.split])
        objective.prepare(sources, cache, progress)
        parts = {label: Data(part, OldReads(part), part.processor, part) for label, part in objective.parts.items()}
        return Data(objective, self, objective.processor, objective, sources=sources, parts=parts)

    def rows(self, data, source, split, cache, progress=False):
        return self.objective.rows(source, split, cache, progress)

    def completed(self, data, rows, cache, progress):
        return self.objective.completed(rows, cache, progress)

    def try_examples(self, examples, data):
        self.objective.try_examples(examples, data is not None)

    def collator(self, data, packed):
        return self.objective.collator(packed)

    def check_shares(self):
        self.objective.check_shares()

    def prepare_share(self, data, source, split, cache, share, progress=False):
        return self.objective.prepare_share(source, split, cache, share, progress)

    def text_columns(self):
        return self.objective.text_columns()

    def asked_columns(self, there):
        return self.objective.asked_columns(there)

    def questions(self, data, source):
        return self.objective.questions(source)

    def with_rows(self, data, source):
        return self.objective.with_rows(source)

    def describe(self, data, rows):
        return self.objective.describe(rows)

    def show(self, console, data, rows, number, row):
        self.objective.show(console, rows, number, row)


class OldLearns(learns.Learns):
    def __init__(self, objective, data):
        super().__init__(objective, data)
        self.shifts_labels, self.new_head = objective.shifts_labels, objective.new_head

    def config_fields(self):
        return self.objective.config_fields()

    def adapt(self, model):
        self.objective.prepare_model(model)

    def loss(self):
        return self.objective.loss()

    def logits_of(self):
        return self.objective.logits_of()

    def loss_parts(self):
        return self.objective.loss_parts()

    def files(self, config):
        return self.objective.files(config)


class OldScores(scores.Scores):
    def __init__(self, objective, data, keeps_scores=False):
        super().__init__(objective, data, keeps_scores)
        objective.keeps_scores = keeps_scores
        self.reads_logits = objective.scorer() is not None
        self.labels_of_tokens = getattr(objective, "labels_of_tokens", False)

    def predictions(self, logits, labels):
        return self.objective.predictions(logits, labels)

    def scored(self, predictions):
        values = self.objective.compute_metrics(predictions)
        return scores.Scored(values, self.objective.signatures, True)

    def of_pass(self, metrics, result, rows, train):
        return self.objective.metrics_of_pass(metrics, result, rows, train)

    def class_report(self, scored, rows, numbers, source):
        return self.objective.class_report(rows, numbers, source)

    def of_answers(self, answers, finished, rows, numbers, train):
        values = self.objective.measure(finished, rows, numbers, train)
        return scores.Scored(values, self.objective.signatures, samples=self.objective.shown)

    def unanswered(self, rows, numbers):
        return self.objective.unanswered(rows, numbers)

    def some_rows(self, rows, most):
        return self.objective.some_rows(rows, most)

    def named(self, value):
        return self.objective.named(value)

    def score_names(self, count):
        return self.objective.score_names(count)


class OldAnswers(answers.Answers):
    def __init__(self, objective, data):
        super().__init__(objective, data)
        objective.processor = data.processor
        self.finishes_on = objective.finishes_on

    @property
    def cut(self):
        return self.objective.cut

    @cut.setter
    def cut(self, number):
        self.objective.cut = number

    @property
    def on_white(self):
        return self.objective.on_white

    @on_white.setter
    def on_white(self, number):
        self.objective.on_white = number

    def check_prompts(self, most):
        self.objective.check_prompts_and_length(most)

    def asked(self, row, place):
        return self.objective.asked(row, place)

    def notes(self):
        return self.objective.notes_of_rows()

    def predict(self, finished, asked):
        return self.objective.predict(finished, asked)

    def samples(self, finished, splits, scored):
        return self.objective.samples(finished, splits)

    def draw(self, finished, rows, path):
        return self.objective.draw(finished, rows, path)


class OldTeaching:
    def __init__(self, objective):
        self.objective = objective

    def before_training(self): ...

    def check_data(self, data): ...

    def for_training(self, data, rows, sources, cache):
        return self.objective.for_training(rows, sources, cache), None


class Objective(Measuring, base.Objective, ABC):
    """The interface before its division; `answers_by`, `shifts_labels` and so on are now attributes of the parts."""

    Reads, Learns, Scores = OldReads, OldLearns, OldScores

    @property
    def Answers(self):
        return type("OldAnswersOf", (OldAnswers,), {"head": self.answers_by})

    shifts_labels: ClassVar[bool] = False
    label_names: list[str] = []
    finishes_on: str = "none"
    answers_by: str = ""
    new_head: str = ""

    def __init__(self, recipe):
        super().__init__(recipe)
        self.processor: Any = None
        self.signatures: dict[str, str] = {}

    @property
    def names(self):
        return self.label_names

    @property
    def tokenizer(self):
        return self.processor if self.special_tokens is not None else None

    @property
    def family(self):
        return self.facts.family

    @property
    def config(self):
        return self.facts.config

    @property
    def batch_size(self) -> int:
        training = self.recipe.training
        return training.extra.get("per_device_eval_batch_size") or training.per_device_train_batch_size

    def teaching(self, reads):
        return OldTeaching(self)

    def check(self) -> None:
        from ..metrics import check_tokenize

        check_tokenize(self.recipe.evaluation.bleu_tokenize, self.metric_names())
        if self.recipe.evaluation.sample_prompts and not self.continues_prompts:
            raise UserError(
                f"evaluation.sample_prompts has no effect with {self.setting}, which does not learn to continue a "
                f"text; remove it"
            )
        if self.recipe.teacher is not None and self.taught == "nothing":
            TEACHERS[self.taught](self, None).check()

    def further_costs(self) -> list[str]:
        return []

    def text_columns(self) -> dict[str, str]:
        return {}

    def check_metrics(self, names=None) -> None:
        super().check_metrics(self.label_names or names)

    def check_model_length(self, most: int) -> None:
        self.check_length(most)

    def check_prompts_and_length(self, most: int) -> None:
        self.check_model_length(most)

    @abstractmethod
    def open(self) -> dict[str, Any]: ...

    @abstractmethod
    def prepare(self, splits: dict[str, Any], cache: Path, progress: bool) -> None: ...

    def corpus(self, source: Any) -> Any | None:
        return None

    @abstractmethod
    def rows(self, source: Any, split: str, cache: Path, progress: bool = False) -> "Rows": ...

    def prepare_share(self, source: Any, split: str, cache: Path, share: "Share", progress: bool = False) -> int:
        raise TypeError(f"{type(self).__name__} allows shares (check_shares), but has no prepare_share of its own")

    def check_shares(self) -> None:
        reads.Reads.check_shares(self.Reads(self))

    def try_examples(self, examples: list, prepared: bool) -> None: ...

    def completed(self, rows: "dict[str, Rows]", cache: Path, progress: bool) -> "dict[str, Rows]":
        return rows

    def before_training(self) -> None: ...

    def for_training(self, rows: "dict[str, Rows]", sources: dict[str, Any], cache: Path) -> "dict[str, Rows]":
        return rows

    @abstractmethod
    def collator(self, packed: bool) -> Callable[[list[dict]], dict]: ...

    @abstractmethod
    def processor_fingerprint(self) -> str: ...

    def describe(self, rows: "Rows") -> str:
        return f"{counted(len(rows), self.row_noun)} of {rows.name}"

    def notes_of_rows(self) -> list[str]:
        return []

    def config_fields(self) -> dict[str, Any]:
        return {}

    def prepare_model(self, model) -> None: ...

    def loss(self) -> "OwnLoss | None":
        return None

    def files(self, config) -> dict[str, str]:
        return {}

    def logits_of(self) -> Callable[[Any], Any] | None:
        return None

    def show(self, console, rows: "Rows", number: int, row: dict) -> None:
        console.print(f"{self.row_noun} {number}: {row}", markup=False)

    def collated(self, rows: "Rows", number: int, row: dict) -> dict:
        from ..data.batch_keys import EPOCH, ROW_IDS

        return self.collator(rows.is_packed)([{ROW_IDS: number, EPOCH: 0} | row])
