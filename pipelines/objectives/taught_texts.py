"""Distillation of answers to whole texts: logits of classes and of tags, or vectors (tokens: teachers.py).

The teacher reads each text with its own tokenizer before the training, and its answers are kept in the cache. Texts of
teacher.files have no labels: on them the model learns from the teacher only.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..data.account import CUT
from ..data.documents import Limits
from ..errors import UserError
from ..lazy import np
from ..plugins import TEACHERS
from ..recipes.introspection import check_beside
from ..recipes.recipe_files import read_yaml_file, recipe_beside
from ..storage.cache import sha
from ..words import counted, say
from .answers import FinishedModel
from .data import Data
from .label_values import are_unnamed
from .tagged_words import word_of_each_token
from .teachers import Teaching
from .token_classification import words_asked

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows
    from .teacher_losses import Lesson


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

    def for_training(self, data: Data, rows: "dict[str, Rows]") -> "tuple[dict[str, Rows], Lesson]":
        from ..data.ordered_rows import joined
        from ..data.reference import WithReference, answered

        train, asked_sources, further = rows["train"], [data.sources["train"]], self._further_texts()
        if further is not None:
            more = self.reads.rows(data, further, further.split, labelled=False)
            train, asked_sources = joined([train, more]), [*asked_sources, further]
            train.account.note(f"{counted(len(more), 'text')} without a label: {more.name}")
        identity = sha([self.objective.taught, self.teacher.identity, *self._how_answered()])
        texts = (self._asked(data, row, place) for source in asked_sources for place, row in source)
        texts = [text for text in texts if text is not None]

        def answer(some: list) -> "np.ndarray":
            return self.teacher.unchanged(self._answers(some))

        answers = answered(texts, self.reads.cache, identity, self.teacher.name, answer)
        numbers = self._learned(data, answers, texts)
        if cut := self.teacher.account.number(CUT, "text"):
            say([f"teacher {self.teacher.name}: {counted(cut, 'text')} cut to what it can read"])
        self.teacher.let_go()
        taught = WithReference(train, numbers, sha([identity, numbers[0].shape[-1]]))
        return rows | {"train": taught}, self._lesson()


class TaughtClasses(TaughtTexts):
    """The class of a text, learned from a teacher's logits."""

    def check(self) -> None:
        super().check()
        if self.objective.settings.class_weights is not None:
            raise UserError("task.class_weights does not go with a teacher, whose answers have no weights; remove it")

    def check_data(self, data: Data) -> None:
        self._order(data.labels.names)

    @property
    def _names(self) -> list[str]:
        """The names of the teacher's classes, in the order of its outputs."""
        return [self.teacher.config.id2label[number] for number in range(self.teacher.config.num_labels)]

    def _order(self, classes: list[str]) -> list[int]:
        """The teacher's number of each class. Raises UserError if it has other classes."""
        names = self._names
        if are_unnamed(names) and len(names) == len(classes):
            return list(range(len(classes)))
        if sorted(names) != sorted(classes):
            raise UserError(
                f"{self.teacher.words} tells {', '.join(names[:8])} apart, but the classes are "
                f"{', '.join(classes[:8])}; a teacher needs the same ones"
            )
        return [names.index(name) for name in classes]

    def _answers(self, asked: list) -> "np.ndarray":
        from .answering import piped

        options = {"top_k": None, "truncation": True, "function_to_apply": "none"}
        outputs = piped(self.teacher, self._asked_model, "TextClassification", asked, **options)
        scores, names = ({entry["label"]: entry["score"] for entry in row} for row in outputs), self._names
        return np.array([[row[name] for name in names] for row in scores], dtype=np.float32)

    def _learned(self, data, found, asked):
        return found[:, self._order(data.labels.names)]

    def _lesson(self):
        from .teacher_losses import ClassLesson

        return ClassLesson(self.section.weight, self.section.temperature)


class TaughtTags(TaughtClasses):
    """The tags of words, learned from a teacher's logits.

    The teacher reads the words of a sentence joined by spaces, with its own tokenizer. Its answer for a word is the
    logits at the word's first token, or at the last one where its recipe says that the word's tag was learned there.
    Words that its tokenizer has cut, or that have no token, are learned from their labels only.
    """

    def before_training(self) -> None:
        super().before_training()
        if not self.teacher.tokenizer.is_fast:
            raise UserError(f"{self.teacher.words} has no tokenizer.json, and does not say where its tokens stand")

    @cached_property
    def _reads_last(self) -> bool:
        """Whether the teacher has learned the tag of a word at its last token."""
        file = recipe_beside(self.teacher.path)
        saved = {} if file is None else read_yaml_file(str(file), "recipes", "recipe of the teacher")[0]
        return (saved.get("task") or {}).get("labelled_token") == "last"

    def _how_answered(self) -> list[str]:
        return ["last"] if self._reads_last else []

    def _asked(self, data: Data, row: dict, place: str) -> list[str] | None:
        words = words_asked(row, self.objective.settings.tokens_field, place)
        return words if "".join(words).strip() else None

    def _answers(self, asked: list[list[str]]) -> "np.ndarray":
        from .answering import of_read_texts

        texts = [" ".join(words) for words in asked]
        read = self.teacher.tokenizer(texts, truncation=True, return_offsets_mapping=True)
        logits = of_read_texts(
            self.teacher,
            self._asked_model,
            texts,
            read["input_ids"],
            lambda found, mask: list(found.float().cpu().numpy()),
        )
        return np.concatenate(list(map(self._of_words, asked, read["offset_mapping"], logits)))

    def _of_words(self, words: list[str], offsets: list, logits: "np.ndarray") -> "np.ndarray":
        """A sentence's logits (tokens, K) -> those of its words (words, K); NaN for a word without a token."""
        of_words = np.full((len(words), logits.shape[-1]), np.nan, dtype=np.float32)
        pairs = list(zip(word_of_each_token(words, offsets), range(len(offsets))))
        for word, place in pairs if self._reads_last else reversed(pairs):
            if word is not None:
                of_words[word] = logits[place]
        return of_words

    def _learned(self, data, found, asked):
        ends = np.cumsum([len(words) for words in asked])
        return np.split(super()._learned(data, found, asked), ends[:-1])

    def _lesson(self):
        from .teacher_losses import TagLesson

        return TagLesson(self.section.weight, self.section.temperature)


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
TEACHERS.add("tags", TaughtTags)
TEACHERS.add("vectors", TaughtVectors)
