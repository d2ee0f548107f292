"""What objectives and tasks share that learn several others in one run: their parts, and the rows of all parts."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar

from ..data.documents import Corpus, Share
from ..data.ordered_rows import mixed
from ..data.rows import Rows
from ..errors import UserError
from ..recipes.introspection import check_beside
from ..recipes.schema import DataSection
from ..recipes.types import show
from .base import Objective
from .data import Data
from .reads import Reads
from .tokens import train_or_load

MOST_ROWS = 2**25  # of an epoch that consists of repeated rows; the numbers of all are shuffled in memory


class SeveralObjectives(Objective):
    """Base of an objective or task whose settings have `parts` with weights and data.

    A subclass binds each part to a recipe of its own (`bound`). The rows of all parts share batches and one tokenizer,
    and the log shows the loss of each part.

    label_field: the setting of a part that names its losses and metrics.
    reads_recipes_data: whether some part reads the data section of the recipe.
    """

    label_field: ClassVar[str]
    reads_recipes_data: bool = False

    @abstractmethod
    def bound(self, part: Any) -> Objective:
        """The objective or task with the settings `part`, bound to a recipe of its own."""

    def label_of(self, part: Any) -> str:
        return getattr(part, self.label_field)

    @cached_property
    def parts(self) -> dict[str, Objective]:
        """The parts by label; raises UserError for fewer than two, and for labels that are no names or occur twice."""
        labels, where = [self.label_of(part) for part in self.settings.parts], f"{self.section}.parts"
        if len(labels) < 2:
            raise UserError(
                f"{where} has {len(labels)} of the two or more {self.section}s that {self.name} learns together"
            )
        for number, label in enumerate(labels):
            if not re.fullmatch(r"\w+", label) or labels.index(label) != number:
                raise UserError(
                    f"{where}.{number}.{self.label_field}={show(label)} must be a name of letters, digits and _ that "
                    f"no other has"
                )
        return dict(zip(labels, map(self.bound, self.settings.parts)))

    @contextmanager
    def of_part(self, label: str) -> Iterator[None]:
        """Name the part in any UserError that the block raises."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.section}.parts, {label}: {error}") from error

    def of_each(self, ask: Callable[[Objective], Any]) -> dict[str, Any]:
        """{label: what `ask` returns for the part}; a UserError names the part."""
        answers = {}
        for label, part in self.parts.items():
            with self.of_part(label):
                answers[label] = ask(part)
        return answers

    # ---- the recipe

    def check_parts(self) -> None:
        """Raise UserError for data settings that have no effect beside parts."""
        names = sorted({row.name for row in fields(DataSection)} - {"description", "cache_dir"})
        why = f"has no effect with {self.setting}; each of {self.section}.parts has data"
        check_beside("data", self.recipe.data, [(name, not self.reads_recipes_data, why) for name in names])
        why = "has no effect, all parts share one; set data.cache_dir"
        for number, part in enumerate(self.settings.parts):
            if part.data is not None:
                check_beside(f"{self.section}.parts.{number}.data", part.data, [("cache_dir", True, why)])


class ReadsParts(Reads):
    """The rows of all parts of SeveralObjectives, in batches with rows of several. Sources are {label: source}.

    _is_placed: as ordered_rows.mixed takes it.
    """

    _is_placed: ClassVar[bool] = False

    @cached_property
    def _parts(self) -> dict[str, Reads]:
        return {label: self._of_part(part) for label, part in self.objective.parts.items()}

    def _of_part(self, part: Objective) -> Reads:
        return part.Reads(part)

    def open(self) -> dict[str, dict]:
        """{split: {label of a part: its source}}."""
        opened = self.objective.of_each(lambda part: part.Reads(part).open())
        splits: dict[str, dict] = {split: {} for split in ("train", "validation", "test")}
        for label, sources in opened.items():
            for split, source in sources.items():
                splits[split][label] = source
        return {split: sources for split, sources in splits.items() if sources}

    def texts(self, source: dict[str, Any]) -> Corpus:
        """The documents of all parts, in turn and equally much text of each; parts with the same text count once."""
        return self._joined({label: self._parts[label].texts(of_part) for label, of_part in source.items()})

    def _joined(self, texts: dict[str, Corpus]) -> Corpus:
        """The documents of all `texts`, in turn; equal ones count once."""
        from ..data.examples import MixtureCorpus

        different: dict[str, Corpus] = {}
        for corpus in texts.values():
            different.setdefault(corpus.fingerprint(), corpus)
        return next(iter(different.values())) if len(different) == 1 else MixtureCorpus("train", different)

    def _training_texts(self, sources: dict[str, dict]) -> Corpus:
        """What the tokenizer is trained on. sources: as `open` returns them."""
        return self.texts(sources["train"])

    def prepare(self, sources: dict[str, dict], tokenizer: Any = None) -> Data:
        """Make one tokenizer, trained on equally much text of each part, with the special tokens of all."""
        parts, texts = {}, self._training_texts(sources)
        tokenizer = train_or_load(self.objective, texts, tokenizer)
        for label, reads in self._parts.items():
            with self.objective.of_part(label):
                parts[label] = reads.prepare(of_label(sources, label), tokenizer)
        return Data(self.objective, self, tokenizer, sources=sources, parts=parts)

    def rows(self, data: Data, source: dict, split: str) -> Rows:
        rows = {}
        for label, part_source in source.items():
            with self.objective.of_part(label):
                rows[label] = self._parts[label].rows(data.parts[label], part_source, split)
        weights = {self.objective.label_of(part): part.weight for part in self.settings.parts}
        if split == "train":
            self._check_epoch(rows, weights)
        return mixed(rows, weights if split == "train" else None, self.seed, self._is_placed)

    def _check_epoch(self, rows: dict[str, Rows], weights: dict[str, float]) -> None:
        """Raise UserError for a part that is so rare that an epoch with each of its rows can hardly be shuffled."""
        rarest = max(rows, key=lambda label: rows[label].in_epoch / weights[label])
        epoch = rows[rarest].in_epoch * sum(weights[label] / weights[rarest] for label in rows)
        most = max(MOST_ROWS, 10 * sum(part.in_epoch for part in rows.values()))  # without bound beside a stream
        if epoch > most:
            raise UserError(
                f"{self.objective.section}.parts, {rarest}: weight={show(weights[rarest])} makes an epoch of "
                f"{epoch:.2g} rows, as each of its {len(rows[rarest]):,} rows comes once in it; set at least "
                f"{weights[rarest] * epoch / most:.2g}"
            )

    def prepare_share(self, data: Data, source: dict, split: str, share: Share) -> int:
        made = 0
        for label, part_source in source.items():
            with self.objective.of_part(label):
                of_part = data.parts[label], part_source, split, share
                made += self._parts[label].prepare_share(*of_part)
        return made

    def show(self, console: Any, data: Data, rows: Rows, number: int, row: dict) -> None:
        label, inside = rows.place(number)
        console.print(f"{label}:", markup=False)
        self._parts[label].show(console, data.parts[label], rows.parts[label], inside, row)


def of_label(splits: dict[str, dict], label: str) -> dict:
    """The sources of one part: {split: source}."""
    return {split: sources[label] for split, sources in splits.items() if label in sources}
