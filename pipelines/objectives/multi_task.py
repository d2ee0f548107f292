"""Several text-to-text tasks in one run: one model, one tokenizer, rows of all by weight (Raffel et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..data.documents import Corpus
from ..data.ordered_rows import OrderedRows
from ..plugins import register_objective
from ..recipes.introspection import check_beside
from ..recipes.schema import DataSection, doc
from .answers import FinishedModel
from .base import refuse_idle
from .data import Data
from .parts import ReadsParts, SeveralObjectives, of_label
from .scores import Scored, Scores
from .text_to_text import AnswerSettings, TextToText, TextToTextSettings
from .tokens import padding_collator
from .writing import SOURCE_AND_TARGET, LearnsToWrite, WritesTexts, WritingSettings, WritingTask, check_writer

SHARED = ("max_length", "max_target_length", "num_beams", "length_penalty", "max_new_tokens")


@dataclass
class PartSettings(AnswerSettings):
    """One of several tasks, with its own name; the settings of text_to_text that are not here are shared."""

    name: str = doc("what its numbers are called: trec makes validation_accuracy_trec", "")
    weight: float = doc("share of the training rows that are of it, relative to the other weights", 1.0, above=0)
    data: DataSection | None = doc("its own data section")
    metrics: list[str] | None = doc("its own metrics; null: by the kind of its answers")
    max_new_tokens: int | None = doc("most tokens generated for it; null: the task's", at_least=1, at_most=2**20)
    num_beams: int | None = doc("beams of the search for it; null: the task's", at_least=1, at_most=1000)


@dataclass
class MultiTaskSettings(WritingSettings):
    parts: list[PartSettings] = doc("the tasks: settings of text_to_text, a name, a weight and data each", [])


class ReadsTasks(ReadsParts):
    """The examples of several text-to-text tasks."""

    legend = SOURCE_AND_TARGET

    def _training_texts(self, sources: dict[str, dict]) -> Corpus:
        """With the names of classes as they are written."""
        corpora = {}
        for label, source in sources["train"].items():
            with self.objective.of_part(label):
                part = self._parts[label]
                corpora[label] = part.texts(source, part.objective.find_classes(part, of_label(sources, label)))
        return self._joined(corpora)

    def prepare(self, sources: dict[str, dict], tokenizer: Any = None) -> Data:
        data = super().prepare(sources, tokenizer)
        check_writer(self.objective, data.tokenizer)
        return data

    def collator(self, data: Data, packed: bool):
        return padding_collator(data.tokenizer)


class TaskScores(Scores):
    """The metrics of each task, with its name behind them."""

    def of_answers(self, finished: FinishedModel, rows: OrderedRows, numbers: Sequence[int]) -> Scored:
        """{"accuracy_trec": ...}; comparisons are kept with the part's name and these rows' numbers."""
        from ..metrics.significance import keep, kept_comparisons

        metrics, signatures, samples = {}, {}, []
        for name, data in self.data.parts.items():
            ids = [number for number in numbers if rows.place(number)[0] == name]
            if ids:
                data.learns().adapt(finished.model)
                inside = [rows.place(number)[1] for number in ids]
                with kept_comparisons() as compared:
                    scored = data.scores().of_answers(finished, rows.parts[name], inside)
                for comparison in compared:
                    keep(replace(comparison, part=name, rows=ids))
                metrics |= {f"{metric}_{name}": value for metric, value in scored.values.items()}
                signatures |= {f"{metric}_{name}": text for metric, text in scored.signatures.items()}
                samples += scored.samples[:1]
        self.data.learns().adapt(finished.model)  # undo the parts' settings: in training, the config is saved
        return Scored(metrics, signatures, samples=samples)


class WritesForTasks(WritesTexts):
    """A row without a label does not say of which task it is, so only prompts are answered."""

    head = ""


@register_objective
class MultiTask(SeveralObjectives):
    """Several text-to-text tasks in one run, by weight, each measured for itself (T5, Raffel et al. 2020)."""

    name = "multi_task"
    section = WritingTask.section
    label_field = "name"
    Settings = MultiTaskSettings
    Reads, Learns, Scores, Answers = ReadsTasks, LearnsToWrite, TaskScores, WritesForTasks
    auto_class = WritingTask.auto_class
    tokens = WritingTask.tokens
    words = TextToText.words
    compares = WritingTask.compares
    continues_prompts = True

    @classmethod
    def metric_names(cls) -> list[str]:
        return TextToText.metric_names()

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for part in self.parts.values() for name in part.metrics))

    def metrics_of_answers(self) -> list[str]:
        return [f"{metric}_{name}" for name, part in self.parts.items() for metric in part.metrics_of_answers()]

    def bound(self, part: PartSettings) -> TextToText:
        """Its recipe differs from this one in task, data and metrics, and has no sample_prompts."""
        names = {row.name for row in fields(AnswerSettings)} - {"name"}
        settings = {name: getattr(part, name) for name in names} | {n: getattr(self.settings, n) for n in SHARED}
        settings |= {n: getattr(part, n) for n in ("max_new_tokens", "num_beams") if getattr(part, n) is not None}
        if settings["num_beams"] == 1:
            settings.pop("length_penalty")  # it may be set for parts with more beams
        evaluation = replace(self.recipe.evaluation, metrics=part.metrics or [], sample_prompts=[])
        data = replace(part.data or DataSection(), cache_dir=self.recipe.data.cache_dir)
        task = TextToTextSettings(**settings, name="text_to_text")
        recipe = replace(self.recipe, task=task, data=data, evaluation=evaluation)
        return TextToText(recipe, names_metrics=part.metrics is not None)

    # ---- the recipe

    def check(self) -> None:
        self.of_each(lambda part: part.check())
        if all(part.settings.num_beams == 1 for part in self.parts.values()):
            refuse_idle(self, ["length_penalty"], "task.num_beams=1", "task.num_beams above 1")
        super().check()

    def check_metrics(self, names=None) -> None:
        why = f"has no effect with {self.setting}; each of task.parts has metrics"
        check_beside("evaluation", self.recipe.evaluation, [("metrics", self.recipe.evaluation.metrics, why)])
        self.of_each(lambda part: part.check_metrics())

    def lengths(self) -> dict[str, int | None]:
        parts = enumerate(self.settings.parts)
        own = super().lengths() | {"max_new_tokens": self.settings.max_new_tokens}
        return own | {f"parts.{number}.max_new_tokens": part.max_new_tokens for number, part in parts}

    planned = WritingTask.planned
