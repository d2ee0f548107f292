"""What a teacher says of the rows, which the model also learns (knowledge distillation, Hinton et al. 2015).

Tokens: the teacher's probabilities of every predicted token, computed in each step or stored once. Classes and vectors:
its answer to every text (taught_texts.py). Validation counts only the labels, as without a teacher; the finished model
needs no teacher.
"""

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from anyformer.modeling.families import FAMILIES

from ..errors import UserError
from ..plugins import OBJECTIVES, TEACHERS
from ..recipes.introspection import check_beside
from ..recipes.schema import TeacherSection
from ..recipes.tokenizer_section import MASK
from ..storage.cache import sha
from ..words import short_number
from .data import Data
from .reads import Reads
from .tokens import further_tokens

if TYPE_CHECKING:
    from ..data.rows import Rows
    from .teacher_losses import Lesson
    from .teacher_model import Teacher


class Teaching:
    """The teacher of a recipe, and what it says of the rows of `reads`.

    files_setting: the setting that names texts without labels; "": it takes none.
    """

    files_setting = ""

    def __init__(self, reads: Reads):
        self.objective, self.reads, self.recipe = reads.objective, reads, reads.recipe
        self.section: TeacherSection = reads.recipe.teacher

    def check(self) -> None:
        """Raise UserError for settings of the recipe that do not go with a teacher; reads no file."""
        section, setting = self.section, self.objective.setting
        if self.objective.taught == "nothing":
            known = ", ".join(name for name, cls in OBJECTIVES.items() if cls.taught != "nothing")
            raise UserError(f"teacher does not go with {setting}; a teacher can teach {known}")
        if not section.name_or_path:
            raise UserError("teacher.name_or_path is not set; name the folder of a finished run, or a repository")
        if self.recipe.model.fields.get("num_nextn_predict_layers"):
            raise UserError("model.num_nextn_predict_layers does not go with a teacher; set it to 0")
        why = f"has no effect with {setting}, which reads data.files; leave it out"
        check_beside("teacher", section, [("files", not self.files_setting, why)])
        self._check_stored()

    def _check_stored(self) -> None:
        """Raise UserError for settings of stored tokens if none are stored."""
        why = f"has no effect with {self.objective.setting}; leave it out"
        check_beside("teacher", self.section, [("stored=", True, why), ("top_k=", True, why)])

    @cached_property
    def teacher(self) -> "Teacher":
        """The teacher, with its config read and its weights not yet loaded. Raises UserError."""
        from .teacher_model import Teacher

        return Teacher(self.section.name_or_path, self.objective.auto_class, self.recipe.trust_remote_code)

    def further_costs(self) -> list[str]:
        """Sentences about costs of the teacher that `anyformer plan` does not count."""
        return []

    def before_training(self) -> None:
        """Raise UserError for a teacher that cannot teach; no data is read yet."""
        self.teacher.check_kind()

    def check_data(self, data: Data) -> Any:
        """Raise UserError for a teacher that does not go with the data, which have no rows yet."""

    @abstractmethod
    def for_training(self, data: Data, rows: "dict[str, Rows]") -> "tuple[dict[str, Rows], Lesson]":
        """The rows of all splits with the teacher's answers to those of `train`, and the loss that learns them."""


class TaughtTokens(Teaching):
    """Every predicted token, learned from a teacher with the same tokenizer."""

    def _check_stored(self) -> None:
        section = self.section
        if not self.objective.predicts_each_position:  # masked, whose tokens are hidden anew in each epoch
            super()._check_stored()
        else:
            why = "has no effect without teacher.stored=true; set it, too"
            check_beside("teacher", section, [("top_k=", not section.stored, why)])
        if not section.stored and "zero3" in str(self.recipe.training.extra.get("deepspeed")):
            raise UserError(
                "training.deepspeed=zero3 would split a teacher that answers in each step; take zero2 or fsdp"
            )
        if section.stored and self.recipe.data.streaming:
            raise UserError("teacher.stored=true needs stored data, and data.streaming=true; set teacher.stored=false")

    def further_costs(self) -> list[str]:
        from ..data.reference import bytes_of_token

        section = self.section
        if section.stored:
            size = bytes_of_token(section.top_k, self.teacher.config.vocab_size)
            return [f"teacher.stored: {size:,} bytes for each token of the training rows go into the cache"]
        count = self.teacher.parameters
        return [
            f"teacher: its {short_number(count)} parameters ({4 * count / 1e9:.2g} GB in fp32) stand beside the model "
            f"on each device, and its forward pass is part of each step; neither is counted here"
        ]

    def before_training(self) -> None:
        super().before_training()
        fills_masks = MASK in further_tokens(self.objective)  # a decoder that learns to
        if fills_masks and getattr(self.teacher.config, "mask_token_id", None) is None:
            raise UserError(f"{self.teacher.words} has not learned to fill in masks; take a decoder that has")

    def check_data(self, data: Data) -> int:
        """The number of ids of the shared tokenizer. Raises UserError for another tokenizer, or too high a top_k."""
        size, section = self.teacher.check_tokenizer(data.tokenizer), self.section
        if section.stored and section.top_k >= size:
            raise UserError(f"teacher.top_k={section.top_k} must be below the {size:,} entries of the tokenizer")
        return size

    def for_training(self, data, rows):
        from .documents_apart import check_documents_apart
        from .teacher_losses import TokenLesson
        from .text import shifts_labels

        section, size, ask = self.section, self.check_data(data), self.teacher.states
        native = self.teacher.config.model_type not in FAMILIES
        if native and any(split.is_packed for split in rows.values()):
            check_documents_apart(self.teacher.model, section.name_or_path, data, rows.values(), "teacher")
        if section.stored:
            rows, ask = rows | {"train": self._stored(data, rows["train"], size)}, None
            self.teacher.let_go()  # not needed after its answers are stored
        else:
            self.teacher.model.eval()  # loads it before the first step
        return rows, TokenLesson(section.weight, section.temperature, shifts_labels(self.objective), size, ask)

    def _stored(self, data: Data, rows: "Rows", size: int) -> "Rows":
        """The rows with the teacher's likeliest tokens of each position; it computes those that the cache lacks."""
        from ..data.reference import WithTopTokens

        if rows.parts:  # stored by source, so that other weights reuse them
            return rows.of({name: self._stored(data, of_source, size) for name, of_source in rows.parts.items()})
        section, collate = self.section, data.reads.collator(data, rows.is_packed)
        key = sha(["top tokens", rows.fingerprint, self.teacher.identity, section.top_k, section.temperature, size])

        def answer(numbers):
            batch = collate([rows[number] for number in numbers])
            return self.teacher.unchanged(self.teacher.top_tokens(batch, size, section.top_k, section.temperature))

        options = {"width": data.objective.settings.sequence_length, "top_k": section.top_k, "vocabulary": size}
        return WithTopTokens.cached(
            rows, self.reads.cache, key, answer, self.recipe.training.evaluation_rows, self.teacher.name, **options
        )


TEACHERS.add("nothing", Teaching)
TEACHERS.add("tokens", TaughtTokens)
