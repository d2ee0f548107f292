"""Examples whose texts a teacher has answered: classes by its logits, vectors by its own (teachers.py has the tokens).

The teacher reads each text by its own tokenizer, before the training, and what it says is kept in the cache. Texts of
teacher.files have no labels: the model learns of them from the teacher alone.
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

NO_LABEL = object()  # what stands for the label of a text of teacher.files


class TaughtTexts(Taught):
    """A subclass says what the teacher answers to some texts, and makes of each answer what is learned."""

    without_labels = False  # whether the rows that are made are of teacher.files
    files_setting = "teacher.files"

    @abstractmethod
    def answers(self, asked: list) -> "np.ndarray":
        """(N, K) float32: what the teacher says of what `asked` gives of N examples; of tags N is that of all words."""

    @abstractmethod
    def made_lesson(self) -> Any:
        """The loss."""

    def further_texts(self):
        """The examples of teacher.files; None: there are none."""
        from ..data.examples import ExampleFiles, Examples
        from ..data.remote_files import with_local_copies

        files, data, field = self.recipe.teacher.files, self.recipe.data, self.files_setting
        if not files:
            return None
        limits = Limits(data.max_document_bytes, data.max_line_bytes, data.encoding)
        patterns = with_local_copies(files, field, data.cache_dir)
        return Examples("further", ExampleFiles(patterns, self.text_columns(), limits, field))

    def before_training(self) -> None:
        super().before_training()
        self.further_texts()  # a file that is not there is said now

    def for_training(self, rows, sources, cache: Path):
        from ..data.reference import Joined, WithReference, answered

        rows, further = super().for_training(rows, sources, cache), self.further_texts()
        joined, asked = rows["train"], [sources["train"]]
        if further is not None:
            self.without_labels = True
            more = self.rows(further, further.split, cache)
            self.without_labels = False
            joined, asked = Joined([joined, more]), [*asked, further]
            joined.notes = [*joined.notes, f"{counted(len(more), 'text')} without a label: {more.name}"]
        identity = sha([self.taught, self.teacher.identity])
        texts = (self.asked_of_teacher(row, place) for source in asked for place, row in source)
        texts = [text for text in texts if text is not None]
        found = answered(texts, cache, identity, self.teacher.name, self.answers)
        numbers = self.completed_answers(found, texts)
        if self.teacher.cut:
            print(f"teacher {self.teacher.name}: {counted(self.teacher.cut, 'text')} cut to what it can read")
        self.teacher.let_go()
        self.lesson = self.made_lesson()
        return rows | {"train": WithReference(joined, numbers, sha([identity, numbers[0].shape[-1]]))}

    def asked_of_teacher(self, row: dict, place: str) -> Any:
        """What `answers` takes of an example; None: the example makes no row."""
        return self.asked(row, place)

    def completed_answers(self, found: "np.ndarray", asked: list) -> "Sequence[np.ndarray]":
        """What is learned of each example: float32, of shape (K,), of tags (words, K)."""
        return found

    @property
    def asked_model(self) -> FinishedModel:
        """The teacher as what answers rows takes it."""
        return FinishedModel(self.teacher.path, lambda: self.teacher.model, self.batch_size)

    def further_costs(self) -> list[str]:
        return [f"teacher={self.recipe.teacher.name_or_path}: its answers to all training texts are stored once"]


class OneAnswer(TaughtTexts):
    """A text has one label, or none."""

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
    """An answer is the logits of all classes, in the teacher's order."""

    def check(self) -> None:
        super().check()
        if self.settings.class_weights is not None:
            raise UserError("task.class_weights does not go with a teacher, whose answers have no weights; remove it")

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        if "teacher" in self.__dict__:  # looked at: this is for a training
            self.order_of_classes()

    def order_of_classes(self) -> list[int]:
        """The teacher's number of each class. Raises UserError where it has others."""
        from .label_values import are_unnamed

        config = self.teacher.config
        names, own = [config.id2label[number] for number in range(config.num_labels)], self.label_names
        if are_unnamed(names) and len(names) == len(own):
            return list(range(len(own)))
        if sorted(names) != sorted(own):
            raise UserError(
                f"{self.teacher.words} tells {', '.join(names[:8])} apart, but the classes are {', '.join(own[:8])}; a "
                f"teacher needs the same ones"
            )
        return [names.index(name) for name in own]

    def completed_answers(self, found, asked):
        return found[:, self.order_of_classes()]


class TaughtClasses(OneAnswer, OfClasses):
    """The classes of a text, by a teacher's logits."""

    def answers(self, asked: list) -> "np.ndarray":
        from .answering import piped

        how = {"top_k": None, "truncation": True, "function_to_apply": "none"}
        found = piped(self.teacher, self.asked_model, "TextClassification", asked, **how)
        names = [self.teacher.config.id2label[number] for number in range(self.teacher.config.num_labels)]
        scores = ({each["label"]: each["score"] for each in row} for row in found)
        return np.array([[row[name] for name in names] for row in scores], dtype=np.float32)

    def made_lesson(self):
        from .teacher_losses import ClassLesson

        return ClassLesson(self.recipe.teacher.weight, self.recipe.teacher.temperature)


class TaughtVectors(OneAnswer):
    """The vectors of texts, as sentence-transformers' model_distillation.py teaches them.

    Where the teacher's are longer, they are turned onto their first principal components.
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

        texts, teacher = [text for each in asked for text in each], self.teacher
        vectors = np.array(vectors_of_texts(teacher, self.asked_model, texts, teacher.pooling), dtype=np.float32)
        return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).reshape(len(asked), -1)

    def completed_answers(self, found, asked):
        vectors = found.reshape(2 * len(found), -1)
        return principal(vectors, self.config.hidden_size).reshape(len(found), -1).astype(np.float32)

    def made_lesson(self):
        from .teacher_losses import VectorLesson

        return VectorLesson(self.recipe.teacher.weight, self.settings.pooling)


def principal(vectors: "np.ndarray", size: int) -> "np.ndarray":
    """(N, D) -> (N, size): turned onto the directions in which they vary most; themselves where D = size."""
    if vectors.shape[1] == size:
        return vectors
    covariance = np.cov(vectors.T.astype(np.float64))
    return vectors @ np.linalg.eigh(covariance)[1][:, ::-1][:, :size]


TEACHERS.add("classes", TaughtClasses)
TEACHERS.add("vectors", TaughtVectors)
