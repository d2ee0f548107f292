"""Several text-to-text tasks in one run: one model, one tokenizer, rows of all by weight (Raffel et al. 2020)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import DataSection, doc
from .data import Data
from .finished_model import FinishedModel
from .parts import MixedRows, ReadsParts, SeveralParts, of_label
from .text_to_text import AnswerSettings, TextToText, TextToTextSettings
from .translation import Translation, WritingSettings

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
    """Rows of several tasks."""

    def prepare(self, sources: dict[str, dict], cache: Path, progress: bool, tokenizer: Any = None) -> Data:
        for name, part in self.objective.parts.items():
            with self.objective.of_part(name):
                part.find_classes(of_label(sources, name), cache)
        data = super().prepare(sources, cache, progress, tokenizer)
        self.objective.processor = data.processor
        self.objective.settle()
        return data

    def collator(self, data: Data, packed: bool) -> Callable[[list[dict]], dict]:
        return self.objective.collator(packed)


@register_objective
class MultiTask(SeveralParts, Translation):
    """Several text-to-text tasks in one run, by weight, each measured for itself (T5, Raffel et al. 2020)."""

    name = "multi_task"
    part_noun = "task"
    label_field = "name"
    Settings = MultiTaskSettings
    Reads = ReadsTasks
    default_metrics = ()
    hub_task = "text2text-generation"
    sample_words = "answer to"
    asks_for = ""

    @classmethod
    def metric_names(cls) -> list[str]:
        return TextToText.metric_names()

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for part in self.parts.values() for name in part.metrics))

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
        bound = TextToText(replace(self.recipe, task=task, data=data, evaluation=evaluation, teacher=None))
        bound.names_metrics = part.metrics is not None
        return bound

    # ---- the recipe

    def check(self) -> None:
        self.of_each(lambda part: part.check())
        if all(part.settings.num_beams == 1 for part in self.parts.values()):
            self.check_search()
        super(Translation, self).check()

    def check_metrics(self) -> None:
        if self.recipe.evaluation.metrics:
            raise UserError(f"evaluation.metrics has no effect with {self.setting}; each of task.parts has metrics")
        self.of_each(lambda part: part.check_metrics())

    def columns(self) -> dict[str, str]:
        return {}

    def lengths(self) -> dict[str, int | None]:
        parts = enumerate(self.settings.parts)
        return super().lengths() | {f"parts.{number}.max_new_tokens": part.max_new_tokens for number, part in parts}

    answers_by = ""  # a row without a label does not say of which task it is

    # ---- measuring

    def metrics_of_answers(self) -> list[str]:
        return [f"{metric}_{name}" for name, part in self.parts.items() for metric in part.metrics_of_answers()]

    def unanswered(self, rows: MixedRows, numbers: Sequence[int]) -> list[str]:
        present = {rows.place(number)[0] for number in numbers}
        missing = {name: part for name, part in self.parts.items() if name not in present}
        return [f"{metric}_{name}" for name, part in missing.items() for metric in part.metrics_of_answers()]

    def measure(self, finished: FinishedModel, rows: MixedRows, numbers: Sequence[int], train) -> dict[str, float]:
        """{"accuracy_trec": ...}; comparisons are kept with the part's name and these rows' numbers."""
        from ..metrics.significance import keep, kept_comparisons

        metrics = {}
        for name, part in self.parts.items():
            ids = [number for number in numbers if rows.place(number)[0] == name]
            if ids:
                part.prepare_model(finished.model)
                with kept_comparisons() as compared:
                    scores = part.measure(finished, rows.parts[name], [rows.place(number)[1] for number in ids], None)
                for comparison in compared:
                    keep(replace(comparison, part=name, rows=ids))
                metrics |= {f"{metric}_{name}": value for metric, value in scores.items()}
                self.signatures |= {f"{metric}_{name}": text for metric, text in part.signatures.items()}
        self.prepare_model(finished.model)  # undo the parts' settings: in training, the generation config is saved
        self.shown = [one for part in self.parts.values() for one in part.shown[:1]]
        return metrics
