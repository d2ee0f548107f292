"""Distillation of answers to whole texts: the teacher's logits of classes, or its vectors (tokens: teachers.py).

The teacher reads each text with its own tokenizer before the training, and its answers are kept in the cache. Texts of
teacher.files have no labels: on them the model learns from the teacher only.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.batch_keys import UNLABELLED
from ..data.documents import Limits
from ..errors import UserError
from ..lazy import np
from ..plugins import TEACHERS
from ..recipes.schema import TeacherSection
from ..storage.cache import sha
from ..words import counted
from .finished_model import FinishedModel
from .teachers import Taught

NO_LABEL = object()  # in place of the label of a text of teacher.files


class TaughtTexts(Taught):
    """A subclass defines the teacher's answers to texts (`answers`) and the loss on them (`made_lesson`)."""

    without_labels = False  # whether rows of teacher.files are being made
    files_setting = "teacher.files"

    @abstractmethod
    def answers(self, asked: list) -> "np.ndarray":
        """(N, K) float32: the teacher's answers to N examples (for tags N words), as asked_of_teacher gives them."""

    @abstractmethod
    def made_lesson(self) -> Any:
        """The loss of the training."""

    def further_texts(self):
        """The examples of teacher.files; None without teacher.files."""
        from ..data.examples import Examples
        from ..data.file_reader import FileReader
        from ..data.reader import ExampleView
        from ..data.remote_files import with_local_copies

        files, data, field = self.recipe.teacher.files, self.recipe.data, self.files_setting
        if not files:
            return None
        patterns = with_local_copies(files, field, data.cache_dir)
        return Examples("further", FileReader(field, patterns, ExampleView(self.text_columns(), Limits.of(data))))

    def before_training(self) -> None:
        super().before_training()
        self.further_texts()  # so that a missing file is reported now

    def for_training(self, rows, sources, cache: Path):
        from ..data.reference import Joined, WithReference, answered

        rows, further = super().for_training(rows, sources, cache), self.further_texts()
        joined, asked_sources = rows["train"], [sources["train"]]
        if further is not None:
            self.without_labels = True
            more = self.rows(further, further.split, cache)
            self.without_labels = False
            joined, asked_sources = Joined([joined, more]), [*asked_sources, further]
            joined.notes = [*joined.notes, f"{counted(len(more), 'text')} without a label: {more.name}"]
        identity = sha([self.taught, self.teacher.identity, *self.how_answered()])
        texts = (self.asked_of_teacher(row, place) for source in asked_sources for place, row in source)
        texts = [text for text in texts if text is not None]
        answers = answered(
            texts, cache, identity, self.teacher.name, lambda some: self.teacher.unchanged(self.answers(some))
        )
        numbers = self.completed_answers(answers, texts)
        if self.teacher.cut:
            print(f"teacher {self.teacher.name}: {counted(self.teacher.cut, 'text')} cut to what it can read")
        self.teacher.let_go()
        self.lesson = self.made_lesson()
        return rows | {"train": WithReference(joined, numbers, sha([identity, numbers[0].shape[-1]]))}

    def how_answered(self) -> list[str]:
        """What else, beside the teacher, its answers depend on."""
        return []

    def asked_of_teacher(self, row: dict, place: str) -> Any:
        """What `answers` takes for an example; None if the example makes no row."""
        return self.asked(row, place)

    def completed_answers(self, found: "np.ndarray", asked: list) -> "Sequence[np.ndarray]":
        """What the model learns for each example: float32 of shape (K,), or (words, K) for tags."""
        return found

    @property
    def asked_model(self) -> FinishedModel:
        """The teacher, as the functions of answering.py take it."""
        return FinishedModel(self.teacher.path, lambda: self.teacher.model, self.batch_size)

    def further_costs(self) -> list[str]:
        return [f"teacher={self.recipe.teacher.name_or_path}: its answers to all training texts are stored once"]


class OneAnswer(TaughtTexts):
    """An example has one label, or none."""

    def label_in(self, row: dict) -> Any:
        return NO_LABEL if self.without_labels else super().label_in(row)

    def label_of(self, value: Any, place: str):
        return UNLABELLED if value is NO_LABEL else super().label_of(value, place)

    def label_identity(self) -> Any:
        return "no labels" if self.without_labels else super().label_identity()

    def label_facts(self, labels: list) -> dict[str, Any]:
        return super().label_facts([label for label in labels if label != UNLABELLED])

    def label_shown(self, row: dict) -> str:
        return "no label" if row["labels"] == UNLABELLED else super().label_shown(row)


class OfClasses(TaughtTexts):
    """The teacher's answer is the logits of all classes, in its own order."""

    def check(self) -> None:
        super().check()
        if self.settings.class_weights is not None:
            raise UserError("task.class_weights does not go with a teacher, whose answers have no weights; remove it")

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        if "teacher" in self.__dict__:  # a training, in which before_training has read it
            self.order_of_classes()

    def order_of_classes(self) -> list[int]:
        """The teacher's number of each class. Raises UserError if it has other classes."""
        from .label_values import are_unnamed

        config = self.teacher.config
        names, classes = [config.id2label[number] for number in range(config.num_labels)], self.label_names
        if are_unnamed(names) and len(names) == len(classes):
            return list(range(len(classes)))
        if sorted(names) != sorted(classes):
            raise UserError(
                f"{self.teacher.words} tells {', '.join(names[:8])} apart, but the classes are {', '.join(classes[:8])}"
                f"; a teacher needs the same ones"
            )
        return [names.index(name) for name in classes]

    def completed_answers(self, found, asked):
        return found[:, self.order_of_classes()]


class TaughtClasses(OneAnswer, OfClasses):
    """The class of a text, learned from a teacher's logits."""

    def answers(self, asked: list) -> "np.ndarray":
        from .answering import piped

        options = {"top_k": None, "truncation": True, "function_to_apply": "none"}
        outputs = piped(self.teacher, self.asked_model, "TextClassification", asked, **options)
        names = [self.teacher.config.id2label[number] for number in range(self.teacher.config.num_labels)]
        scores = ({entry["label"]: entry["score"] for entry in row} for row in outputs)
        return np.array([[row[name] for name in names] for row in scores], dtype=np.float32)

    def made_lesson(self):
        from .teacher_losses import ClassLesson

        return ClassLesson(self.recipe.teacher.weight, self.recipe.teacher.temperature)


class TaughtVectors(OneAnswer):
    """The vectors of texts, distilled as in sentence-transformers' model_distillation.py.

    If the teacher's vectors are longer than the model's, they are projected onto their first principal components.
    """

    def check(self) -> None:
        super().check()
        if self.settings.loss == "in_batch_negatives":
            raise UserError("task.loss=in_batch_negatives does not go with a teacher of vectors; set task.loss=cosine")
        if self.recipe.teacher.temperature != TeacherSection.temperature:
            raise UserError("teacher.temperature has no effect on vectors; leave it out")

    def before_training(self) -> None:
        super().before_training()
        self.teacher.check_vectors()
        most, width = self.teacher.config.hidden_size, self.config.hidden_size
        if width > most:
            raise UserError(
                f"model.hidden_size={width} is more than the {most} numbers of a vector of {self.teacher.words}; "
                f"at most as many can be taught"
            )

    def answers(self, asked: list) -> "np.ndarray":
        from .answering import vectors_of_texts

        texts, teacher = [text for pair in asked for text in pair], self.teacher
        vectors = np.array(vectors_of_texts(teacher, self.asked_model, texts, teacher.pooling), dtype=np.float32)
        return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).reshape(len(asked), -1)

    def completed_answers(self, found, asked):
        vectors = found.reshape(2 * len(found), -1)
        return principal(vectors, self.config.hidden_size).reshape(len(found), -1).astype(np.float32)

    def made_lesson(self):
        from .teacher_losses import VectorLesson

        return VectorLesson(self.recipe.teacher.weight, self.settings.pooling)


def principal(vectors: "np.ndarray", size: int) -> "np.ndarray":
    """(N, D) -> (N, size): projected, uncentred, onto their first principal components; unchanged if D = size."""
    if vectors.shape[1] == size:
        return vectors
    covariance = np.cov(vectors.T.astype(np.float64))
    return vectors @ np.linalg.eigh(covariance)[1][:, ::-1][:, :size]


TEACHERS.add("classes", TaughtClasses)
TEACHERS.add("vectors", TaughtVectors)
