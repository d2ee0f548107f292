"""Objectives whose model also learns from a teacher's outputs (knowledge distillation, Hinton et al. 2015).

The objective of a recipe with a section `teacher` is a subclass (plugins.taught) of `Taught` and of the class that
objective.name or task.name names. Tokens: the teacher's probabilities of every predicted token, computed in each step
or stored once. Classes and vectors: its answer to every text (taught_texts.py). Validation counts only the labels, as
without a teacher; the finished model needs no teacher.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.modeling.families import FAMILIES

from ..errors import UserError
from ..plugins import OBJECTIVES, TEACHERS
from ..recipes.schema import TeacherSection
from ..storage.cache import sha
from ..words import short_number
from .data import Data

if TYPE_CHECKING:
    from ..data.rows import Rows
    from .teacher_model import Teacher


class Taught:
    """Mixin, named before an Objective. A subclass prepares the teacher's answers and `lesson` in `for_training`."""

    files_setting = ""  # the setting that names texts without labels; "": it takes none
    lesson = None  # the loss of a training; None to measure a finished model, which needs no teacher

    def check(self) -> None:
        super().check()
        section = self.recipe.teacher
        if self.taught == "nothing":
            known = ", ".join(name for name, cls in OBJECTIVES.items() if cls.taught != "nothing")
            raise UserError(f"teacher does not go with {self.setting}; a teacher can teach {known}")
        if not section.name_or_path:
            raise UserError("teacher.name_or_path is not set; name the folder of a finished run, or a repository")
        if self.recipe.model.fields.get("num_nextn_predict_layers"):
            raise UserError("model.num_nextn_predict_layers does not go with a teacher; set it to 0")
        if section.files and not self.files_setting:
            raise UserError(f"teacher.files has no effect with {self.setting}, which reads data.files; leave it out")
        self.check_stored(section)

    def check_stored(self, section: TeacherSection) -> None:
        """Raise UserError for settings of stored tokens if none are stored."""
        for name in ("stored", "top_k"):
            value = getattr(section, name)
            if value != getattr(TeacherSection, name):
                raise UserError(f"teacher.{name}={str(value).lower()} has no effect with {self.setting}; leave it out")

    @cached_property
    def teacher(self) -> "Teacher":
        """The teacher, with its config read and its weights not yet loaded. Raises UserError."""
        from .teacher_model import Teacher

        return Teacher(self.recipe.teacher.name_or_path, self.auto_class, self.recipe.trust_remote_code)

    def before_training(self) -> None:
        super().before_training()
        self.teacher.check_kind()

    def loss(self):
        return super().loss() if self.lesson is None else self.lesson

    def collator(self, packed: bool) -> Callable:
        from .teacher_losses import BesideCollator

        return BesideCollator(super().collator(packed))


class TaughtTokens(Taught):
    """Every predicted token, learned from a teacher with the same tokenizer."""

    def check_stored(self, section: TeacherSection) -> None:
        if self.name != "causal":  # masked, whose tokens are hidden anew in each epoch
            super().check_stored(section)
        elif not section.stored and section.top_k != TeacherSection.top_k:
            raise UserError(f"teacher.top_k={section.top_k} has no effect without teacher.stored=true; set it, too")
        if not section.stored and "zero3" in str(self.recipe.training.extra.get("deepspeed")):
            raise UserError(
                "training.deepspeed=zero3 would split a teacher that answers in each step; take zero2 or fsdp"
            )
        if section.stored and self.recipe.data.streaming:
            raise UserError("teacher.stored=true needs stored data, and data.streaming=true; set teacher.stored=false")

    def before_training(self) -> None:
        super().before_training()
        if self.name == "masked" and self.by_decoder and getattr(self.teacher.config, "mask_token_id", None) is None:
            raise UserError(f"{self.teacher.words} has not learned to fill in masks; take a decoder that has")

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        if "teacher" in self.__dict__:  # a training, in which before_training has read it
            self.shared_ids()

    def shared_ids(self) -> int:
        """The number of ids of the shared tokenizer. Raises UserError for another tokenizer, or too high a top_k."""
        size, section = self.teacher.check_tokenizer(self.tokenizer), self.recipe.teacher
        if section.stored and section.top_k >= size:
            raise UserError(f"teacher.top_k={section.top_k} must be below the {size:,} entries of the tokenizer")
        return size

    def for_training(self, rows, sources, cache: Path):
        from .documents_apart import check_documents_apart
        from .teacher_losses import TokenLesson

        rows, section = super().for_training(rows, sources, cache), self.recipe.teacher
        size, ask = self.shared_ids(), self.teacher.logits
        native = self.teacher.config.model_type not in FAMILIES
        if native and any(split.is_packed for split in rows.values()):
            check_documents_apart(
                self.teacher.model,
                section.name_or_path,
                Data(self, self.Reads(self), self.processor),
                rows.values(),
                "teacher",
            )
        if section.stored:
            rows, ask = rows | {"train": self.stored(rows["train"], size, cache)}, None
            self.teacher.let_go()  # not needed after its answers are stored
        else:
            self.teacher.model.eval()  # loads it before the first step
        self.lesson = TokenLesson(section.weight, section.temperature, self.shifts_labels, size, ask)
        return rows

    def stored(self, rows: "Rows", size: int, cache: Path) -> "Rows":
        """The rows with the teacher's likeliest tokens of each position; it computes those that the cache lacks."""
        from ..data.teacher_store import WithTopTokens

        if rows.parts:  # stored by source, so that other weights reuse them
            return rows.of({name: self.stored(source_rows, size, cache) for name, source_rows in rows.parts.items()})
        section, collate = self.recipe.teacher, super().collator(rows.is_packed)
        key = sha(["top tokens", rows.fingerprint, self.teacher.identity, section.top_k, section.temperature, size])

        def answer(numbers):
            batch = collate([rows[number] for number in numbers])
            return self.teacher.unchanged(self.teacher.top_tokens(batch, size, section.top_k, section.temperature))

        options = {"width": self.settings.sequence_length, "top_k": section.top_k, "vocabulary": size}
        return WithTopTokens.cached(rows, cache, key, answer, self.batch_size, self.teacher.name, **options)

    def further_costs(self) -> list[str]:
        from ..data.teacher_store import bytes_of_token

        section = self.recipe.teacher
        if section.stored:
            size = bytes_of_token(section.top_k, self.teacher.config.vocab_size)
            return [f"teacher.stored: {size:,} bytes for each token of the training rows go into the cache"]
        count = self.teacher.parameters
        return [
            f"teacher: its {short_number(count)} parameters ({4 * count / 1e9:.2g} GB in fp32) stand beside the model "
            f"on each device, and its forward pass is part of each step; neither is counted here"
        ]


TEACHERS.add("nothing", Taught)
TEACHERS.add("tokens", TaughtTokens)
