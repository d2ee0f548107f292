"""Distillation of answers to whole texts: the teacher's logits of classes, or its vectors (tokens: teachers.py).

The teacher reads each text with its own tokenizer before the training, and its answers are kept in the cache. Texts of
teacher.files have no labels: on them the model learns from the teacher only.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.account import CUT
from ..data.documents import Limits
from ..errors import UserError
from ..lazy import np
from ..plugins import TEACHERS
from ..recipes.introspection import check_beside
from ..storage.cache import sha
from ..words import counted
from .data import Data
from .finished_model import FinishedModel
from .label_values import are_unnamed
from .teachers import Teaching

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows
    from .base import Objective
    from .teacher_losses import Lesson
    from .teacher_model import Teacher


class TaughtTexts(Teaching):
    """Whole texts. A subclass defines the teacher's answers to texts (`_answers`) and the loss on them (`_lesson`)."""

    files_setting = "teacher.files"

    @abstractmethod
    def _answers(self, asked: list) -> "np.ndarray":
        """(N, K) float32: the teacher's answers to N examples (for tags N words), as `_asked` gives them."""

    @abstractmethod
    def _lesson(self) -> "Lesson":
        """The loss of the training."""

    def _asked(self, data: Data, row: dict, place: str) -> Any:
        """What `_answers` takes for an example; None if the example makes no row."""
        return data.answers().asked(row, place)

    def _learned(self, data: Data, found: "np.ndarray", asked: list) -> "Sequence[np.ndarray]":
        """What the model learns for each example: float32 of shape (K,), or (words, K) for tags."""
        return found

    def _how_answered(self) -> list[str]:
        """What else, beside the teacher, its answers depend on."""
        return []

    @property
    def _asked_model(self) -> FinishedModel:
        """The teacher, as the functions of answering.py take it."""
        return FinishedModel(self.teacher.path, lambda: self.teacher.model, self.recipe.training.evaluation_rows)

    def _further_texts(self) -> "Examples | None":
        """The examples of teacher.files; None without teacher.files."""
        from ..data.examples import Examples
        from ..data.file_reader import FileReader
        from ..data.reader import ExampleView
        from ..data.remote_files import with_local_copies

        files, data, field = self.section.files, self.recipe.data, self.files_setting
        if not files:
            return None
        patterns = with_local_copies(files, field, data.cache_dir)
        view = ExampleView(self.reads.text_columns(), Limits.of(data))
        return Examples("further", FileReader(field, patterns, view))

    def further_costs(self) -> list[str]:
        return [f"teacher={self.section.name_or_path}: its answers to all training texts are stored once"]

    def before_training(self) -> None:
        super().before_training()
        self._further_texts()  # so that a missing file is reported now

    def for_training(
        self, data: Data, rows: "dict[str, Rows]", sources: "dict[str, Examples]", cache: Path
    ) -> "tuple[dict[str, Rows], Lesson]":
        from ..data.ordered_rows import joined
        from ..data.reference import WithReference, answered

        train, asked_sources, further = rows["train"], [sources["train"]], self._further_texts()
        if further is not None:
            more = self.reads.rows(data, further, further.split, cache, labelled=False)
            train, asked_sources = joined([train, more]), [*asked_sources, further]
            train.account.note(f"{counted(len(more), 'text')} without a label: {more.name}")
        identity = sha([self.objective.taught, self.teacher.identity, *self._how_answered()])
        texts = (self._asked(data, row, place) for source in asked_sources for place, row in source)
        texts = [text for text in texts if text is not None]
        answers = answered(
            texts, cache, identity, self.teacher.name, lambda some: self.teacher.unchanged(self._answers(some))
        )
        numbers = self._learned(data, answers, texts)
        if cut := self.teacher.account.number(CUT, "text"):
            print(f"teacher {self.teacher.name}: {counted(cut, 'text')} cut to what it can read")
        self.teacher.let_go()
        taught = WithReference(train, numbers, sha([identity, numbers[0].shape[-1]]))
        return rows | {"train": taught}, self._lesson()


class TaughtClasses(TaughtTexts):
    """The class of a text, learned from a teacher's logits."""

    def check(self) -> None:
        super().check()
        refuse_weights(self.objective)

    def check_data(self, data: Data) -> None:
        order_of_classes(self.teacher, data.labels.names)

    def _answers(self, asked: list) -> "np.ndarray":
        from .answering import piped

        options = {"top_k": None, "truncation": True, "function_to_apply": "none"}
        outputs = piped(self.teacher, self._asked_model, "TextClassification", asked, **options)
        names = names_of_teacher(self.teacher)
        scores = ({entry["label"]: entry["score"] for entry in row} for row in outputs)
        return np.array([[row[name] for name in names] for row in scores], dtype=np.float32)

    def _learned(self, data, found, asked):
        return found[:, order_of_classes(self.teacher, data.labels.names)]

    def _lesson(self):
        from .teacher_losses import ClassLesson

        return ClassLesson(self.section.weight, self.section.temperature)


# ---- of teachers whose answers are the logits of all classes, in their own order


def refuse_weights(objective: "Objective") -> None:
    """Raise UserError for weights of classes."""
    if objective.settings.class_weights is not None:
        raise UserError("task.class_weights does not go with a teacher, whose answers have no weights; remove it")


def names_of_teacher(teacher: "Teacher") -> list[str]:
    """The names of the teacher's classes, in the order of its outputs."""
    return [teacher.config.id2label[number] for number in range(teacher.config.num_labels)]


def order_of_classes(teacher: "Teacher", classes: list[str]) -> list[int]:
    """The teacher's number of each class. Raises UserError if it has other classes."""
    names = names_of_teacher(teacher)
    if are_unnamed(names) and len(names) == len(classes):
        return list(range(len(classes)))
    if sorted(names) != sorted(classes):
        raise UserError(
            f"{teacher.words} tells {', '.join(names[:8])} apart, but the classes are {', '.join(classes[:8])}; a "
            f"teacher needs the same ones"
        )
    return [names.index(name) for name in classes]


class TaughtVectors(TaughtTexts):
    """The vectors of texts, distilled as in sentence-transformers' model_distillation.py.

    If the teacher's vectors are longer than the model's, they are projected onto their first principal components.
    """

    def check(self) -> None:
        super().check()
        if self.objective.settings.loss == "in_batch_negatives":
            raise UserError("task.loss=in_batch_negatives does not go with a teacher of vectors; set task.loss=cosine")
        check_beside("teacher", self.section, [("temperature", True, "has no effect on vectors; leave it out")])

    @property
    def _width(self) -> int:
        """The numbers of a vector of the model."""
        return self.objective.facts.config.hidden_size

    def before_training(self) -> None:
        super().before_training()
        self.teacher.check_vectors()
        most = self.teacher.config.hidden_size
        if self._width > most:
            raise UserError(
                f"model.hidden_size={self._width} is more than the {most} numbers of a vector of {self.teacher.words}; "
                f"at most as many can be taught"
            )

    def _answers(self, asked: list) -> "np.ndarray":
        from .answering import vectors_of_texts

        texts, teacher = [text for pair in asked for text in pair], self.teacher
        vectors = np.array(vectors_of_texts(teacher, self._asked_model, texts, teacher.pooling), dtype=np.float32)
        return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).reshape(len(asked), -1)

    def _learned(self, data, found, asked):
        vectors = found.reshape(2 * len(found), -1)
        return principal(vectors, self._width).reshape(len(found), -1).astype(np.float32)

    def _lesson(self):
        from .teacher_losses import VectorLesson

        return VectorLesson(self.section.weight, self.objective.settings.pooling)


def principal(vectors: "np.ndarray", size: int) -> "np.ndarray":
    """(N, D) -> (N, size): projected, uncentred, onto their first principal components; unchanged if D = size."""
    if vectors.shape[1] == size:
        return vectors
    covariance = np.cov(vectors.T.astype(np.float64))
    return vectors @ np.linalg.eigh(covariance)[1][:, ::-1][:, :size]


TEACHERS.add("classes", TaughtClasses)
TEACHERS.add("vectors", TaughtVectors)
