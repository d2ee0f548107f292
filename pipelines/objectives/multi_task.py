"""Several text-to-text tasks in one run: one model, one tokenizer, rows of all of them by weight (Raffel et al. 2020).

An epoch is one pass over the part that is longest for its weight; the rows of the others come again in it, in equal
measure. Rows of all parts share batches, so that each step learns from all of them.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from ..data.rows import Rows
from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import DataSection, doc
from ..recipes.types import show
from .base import FinishedModel
from .text_to_text import AnswerSettings, TextToText, TextToTextSettings
from .translation import Translation, WritingSettings

SHARED = ("max_length", "max_target_length", "num_beams", "length_penalty", "max_new_tokens")


@dataclass
class PartSettings(AnswerSettings):
    """One task of several. `name` is its own; the other settings of text_to_text are shared."""

    name: str = doc("what its numbers are called: trec makes validation_accuracy_trec", "")
    weight: float = doc("share of the training rows that are of it, relative to the other weights", 1.0, above=0)
    data: DataSection | None = doc("its own data section")
    metrics: list[str] | None = doc("its own metrics; null: by the kind of its answers")
    max_new_tokens: int | None = doc("most tokens generated for it; null: the task's", at_least=1, at_most=2**20)
    num_beams: int | None = doc("beams of the search for it; null: the task's", at_least=1, at_most=1000)


@dataclass
class MultiTaskSettings(WritingSettings):
    parts: list[PartSettings] = doc("the tasks: settings of text_to_text, a name, a weight and data each", [])


@register_objective
class MultiTask(Translation):
    """Several text-to-text tasks in one run, by weight, each measured for itself (T5, Raffel et al. 2020)."""

    name = "multi_task"
    Settings = MultiTaskSettings
    default_metrics = ()
    hub_task = "text2text-generation"

    @classmethod
    def metric_names(cls) -> list[str]:
        return TextToText.metric_names()

    @cached_property
    def parts(self) -> dict[str, TextToText]:
        """The tasks by name, each bound to a recipe of its own: the same but for task, data and metrics."""
        own = {row.name for row in fields(AnswerSettings)} - {"name"}
        found = {}
        for part in self.settings.parts:
            settings = {name: getattr(part, name) for name in own} | {n: getattr(self.settings, n) for n in SHARED}
            settings |= {n: getattr(part, n) for n in ("max_new_tokens", "num_beams") if getattr(part, n) is not None}
            evaluation = replace(self.recipe.evaluation, metrics=part.metrics or [], sample_prompts=[])
            data = replace(part.data or DataSection(), cache_dir=self.recipe.data.cache_dir)
            recipe = replace(self.recipe, task=TextToTextSettings(**settings, name="text_to_text"), data=data)
            recipe.evaluation, recipe.trust_remote_code = evaluation, self.recipe.trust_remote_code
            found[part.name] = TextToText(recipe)
        return found

    @contextmanager
    def of_part(self, name: str) -> Iterator[None]:
        """Whatever UserError the block raises says of which part it is."""
        try:
            yield
        except UserError as error:
            raise UserError(f"task.parts, {name}: {error}") from error

    # ---- the recipe

    def check(self) -> None:
        names = [part.name for part in self.settings.parts]
        if len(names) < 2:
            raise UserError(f"task.parts has {len(names)} of the two or more tasks that multi_task learns together")
        for number, name in enumerate(names):
            if not re.fullmatch(r"\w+", name) or names.index(name) != number:
                raise UserError(
                    f"task.parts.{number}.name={show(name)} must be a name of letters, digits and _ that no other has"
                )
        for name, part in self.parts.items():
            with self.of_part(name):
                part.check()
        super(Translation, self).check()

    def data_sections(self) -> list[DataSection]:
        return [part.recipe.data for part in self.parts.values()]

    def check_data(self) -> None:
        data = self.recipe.data
        own = {row.name for row in fields(DataSection)} - {"description", "cache_dir"}
        changed = [name for name in own if getattr(data, name) != getattr(DataSection(), name)]
        if changed:
            raise UserError(f"data.{sorted(changed)[0]} has no effect with {self.setting}; each of task.parts has data")
        for name, part in self.parts.items():
            with self.of_part(name):
                part.check_data()

    def check_metrics(self) -> None:
        if self.recipe.evaluation.metrics:
            raise UserError(f"evaluation.metrics has no effect with {self.setting}; each of task.parts has metrics")
        for name, part in self.parts.items():
            with self.of_part(name):
                part.check_metrics()

    def columns(self) -> dict[str, str]:
        return {}

    # ---- data

    def open(self) -> dict[str, dict]:
        """{split: {part: its examples}}."""
        opened = {}
        for name, part in self.parts.items():
            with self.of_part(name):
                opened[name] = part.open()
        splits = {split: {} for split in ("train", "validation", "test")}
        for name, sources in opened.items():
            for split, source in sources.items():
                splits[split][name] = source
        return {split: sources for split, sources in splits.items() if sources}

    def prepare(self, splits: dict[str, dict], cache: Path, progress: bool) -> None:
        """One tokenizer, trained on as much text of each part, in turn."""
        from ..data.mixture import MixtureCorpus

        def of(name: str) -> dict:
            return {split: sources[name] for split, sources in splits.items() if name in sources}

        for name, part in self.parts.items():
            with self.of_part(name):
                part.find_classes(of(name), cache)
        texts = [(part.corpus(splits["train"][name]), 1.0) for name, part in self.parts.items()]
        corpus = MixtureCorpus("train", texts, keep_shares=False)
        self.processor = self.train_or_load_tokenizer(corpus, cache, progress)
        for name, part in self.parts.items():
            with self.of_part(name):
                part.given_tokenizer = self.processor
                part.prepare(of(name), cache, progress)
        self.need_tokens(eos="an end-of-text", pad="a padding")
        section = self.settings
        self.max_target_length = section.max_target_length or section.max_length
        self.max_new_tokens = section.max_new_tokens or self.max_target_length

    def rows(self, source: dict, split: str, cache: Path, progress: bool = False) -> "MixedRows":
        found = {}
        for name, examples in source.items():
            with self.of_part(name):
                found[name] = self.parts[name].rows(examples, split, cache, progress)
        weights = {part.name: part.weight for part in self.settings.parts} if split == "train" else None
        return MixedRows(found, weights)

    def describe(self, rows: "MixedRows") -> str:
        total = len(rows)
        return "\n".join(
            f"{name} ({rows.counts[name] / total:.1%} of the rows): {self.parts[name].describe(part)}"
            for name, part in rows.parts.items()
        )

    # ---- measuring

    def parts_of(self, rows: "MixedRows") -> tuple[Sequence[str], Callable[[int], str]]:
        return list(rows.parts), lambda number: rows.place(number)[0]

    def finish(self, finished: FinishedModel, splits: dict[str, "MixedRows"]) -> tuple[dict[str, float], list[dict]]:
        """{"validation_loss_trec": ..., "validation_accuracy_trec": ...}, and a sample of each part."""
        metrics, samples = {}, []
        for name, part in self.parts.items():
            own = {split: rows.parts[name] for split, rows in splits.items() if name in rows.parts}
            part.prepare_model(finished.model)
            for split, rows in own.items():
                if split != "train":
                    metrics[f"{split}_loss_{name}"] = self.mean_loss(finished, rows, range(len(rows)))
            found, shown = part.finish(finished, own)
            metrics |= {f"{metric}_{name}": value for metric, value in found.items()}
            samples += shown[:1]
            self.signatures |= {f"{metric}_{name}": text for metric, text in part.signatures.items()}
        prompts = self.recipe.evaluation.sample_prompts
        if prompts:
            self.prepare_model(finished.model)
            texts = self.generate_texts(finished.model, prompts)
            samples = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts)]
        return metrics, samples

    def measure(self, finished: FinishedModel, rows: "MixedRows", numbers: Sequence[int], train) -> dict[str, float]:
        metrics = {}
        for name, part in self.parts.items():
            own = [number for where, number in map(rows.place, numbers) if where == name]
            if own:
                part.prepare_model(finished.model)
                metrics[f"loss_{name}"] = self.mean_loss(finished, rows.parts[name], own)
                found = part.measure(finished, rows.parts[name], own, None)
                metrics |= {f"{metric}_{name}": value for metric, value in found.items()}
                self.signatures |= {f"{metric}_{name}": text for metric, text in part.signatures.items()}
        return metrics

    def mean_loss(self, finished: FinishedModel, rows: Rows, numbers: Sequence[int]) -> float:
        """Mean loss per token of the answers of some rows; every process computes a share."""
        import torch

        from ..data.batch_keys import IGNORE_INDEX
        from ..data.example_store import in_batches

        def sums(mine: list[int]) -> list[tuple[float, int]]:
            found = []
            for chosen in in_batches(mine, finished.batch_size):
                batch = self.collator(packed=False)([rows[number] for number in chosen])
                batch = {name: x.to(finished.model.device) for name, x in batch.items()}
                with torch.inference_mode():
                    logits = finished.model(**batch).logits.float()
                losses = torch.nn.functional.cross_entropy(
                    logits.transpose(1, 2), batch["labels"], ignore_index=IGNORE_INDEX, reduction="none"
                )
                counts = batch["labels"].ne(IGNORE_INDEX).sum(dim=1)
                found += zip(losses.double().sum(dim=1).tolist(), counts.tolist())
            return found

        totals = finished.shared(numbers, sums)
        return math.fsum(total for total, _ in totals) / sum(count for _, count in totals)

    # ---- words

    def sample_title(self, prompt: str) -> str:
        return f"answer to {prompt!r}"

    def show(self, console, rows: "MixedRows", number: int, row: dict) -> None:
        name, inside = rows.place(number)
        console.print(f"{name}:", markup=False)
        self.parts[name].show(console, rows.parts[name], inside, row)


class MixedRows(Rows):
    """Rows of several parts, one part after the other; the training shuffles them.

    weights: part -> share of the rows; a part's rows come again in their order until it has its share, and each comes
    at least once. None: each row once. counts: part -> how many rows of it there are then.
    """

    def __init__(self, parts: dict[str, Rows], weights: dict[str, float] | None):
        self.parts = parts
        self.counts = {name: len(rows) for name, rows in parts.items()}
        if weights is not None:
            longest = max(len(rows) / weights[name] for name, rows in parts.items())
            # Of several equal parts none is one row longer because of rounding.
            self.counts = {name: math.ceil(weights[name] * longest - 1e-6) for name in parts}
        self.name = " + ".join(rows.name for rows in parts.values())
        identity = [[name, rows.fingerprint, self.counts[name]] for name, rows in parts.items()]
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        tokens = sum(rows.facts["tokens"] * self.counts[name] // len(rows) for name, rows in parts.items())
        self.facts = {"examples": len(self), "tokens": tokens, "parts": dict(self.counts)}

    def __len__(self) -> int:
        return sum(self.counts.values())

    @cached_property
    def row_lengths(self):
        import numpy as np

        return np.concatenate(
            [np.resize(np.asarray(rows.row_lengths), self.counts[name]) for name, rows in self.parts.items()]
        )

    def place(self, number: int) -> tuple[str, int]:
        """(part, number in it) of a row."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        number %= len(self)
        for name, count in self.counts.items():
            if number < count:
                return name, number % len(self.parts[name])
            number -= count
        raise AssertionError("unreachable: the number is below the sum of the counts")

    def __getitem__(self, number: int) -> dict:
        name, inside = self.place(number)
        return self.parts[name][inside]
