"""Distillation of word tags: the teacher reads the words of a sentence joined by spaces, with its own tokenizer.

Its answer for a word is the logits at the word's first token, or at the last one where its recipe says that the word's
tag was learned there. Words that its tokenizer has cut, or that have no token,
are learned from their labels only.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar

from ..data.batch_keys import IGNORE_INDEX, WORDS, pad
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import TEACHERS
from ..recipes.recipe_files import read_yaml_file, recipe_beside
from .tag_schemes import word_of_each_token
from .taught_texts import OfClasses
from .teacher_losses import BesideCollator, TagLesson


class TaughtTags(OfClasses):
    """The tags of words, learned from a teacher's logits."""

    columns_of_rows: ClassVar[dict[str, str]] = {"input_ids": "int32[]", "labels": "int32[]", WORDS: "int32[]"}

    def before_training(self) -> None:
        super().before_training()
        if not self.teacher.tokenizer.is_fast:
            raise UserError(f"{self.teacher.words} has no tokenizer.json, and does not say where its tokens stand")

    @cached_property
    def reads_last(self) -> bool:
        """Whether the teacher has learned the tag of a word at its last token."""
        file = recipe_beside(self.teacher.path)
        saved = {} if file is None else read_yaml_file(str(file), "recipes", "recipe of the teacher")[0]
        return (saved.get("task") or {}).get("labelled_token") == "last"

    def how_answered(self) -> list[str]:
        return ["last"] if self.reads_last else []

    def _sentence(self, row: dict, place: str) -> tuple[list[str], list[str]]:
        if not self.without_labels:
            return super()._sentence(row, place)
        words = self.asked_of_teacher(row, place) or []
        return words, self.classes.names[:1] * len(words)

    def _batches(self, examples, **how) -> Iterator[dict[str, list]]:
        for batch in super()._batches(examples, **how):
            if self.without_labels:
                batch["labels"] = [[IGNORE_INDEX] * len(ids) for ids in batch["input_ids"]]
                batch["facts"]["tags"] = {}
            yield batch

    def asked_of_teacher(self, row: dict, place: str) -> list[str] | None:
        sentence = self.asked(row, place)
        words = sentence.split() if isinstance(sentence, str) else sentence
        return words if "".join(words).strip() else None

    def answers(self, asked: list[list[str]]) -> "np.ndarray":
        from .answering import of_read_texts

        texts = [" ".join(words) for words in asked]
        read = self.teacher.tokenizer(texts, truncation=True, return_offsets_mapping=True)
        logits = of_read_texts(
            self.teacher,
            self.asked_model,
            texts,
            read["input_ids"],
            lambda found, mask: list(found.float().cpu().numpy()),
        )
        return np.concatenate(list(map(self._of_words, asked, read["offset_mapping"], logits)))

    def _of_words(self, words: list[str], offsets: list, logits: "np.ndarray") -> "np.ndarray":
        """A sentence's logits (tokens, K) -> those of its words (words, K); NaN for a word without a token."""
        of_words = np.full((len(words), logits.shape[-1]), np.nan, dtype=np.float32)
        pairs = list(zip(word_of_each_token(words, offsets), range(len(offsets))))
        for word, place in pairs if self.reads_last else reversed(pairs):
            if word is not None:
                of_words[word] = logits[place]
        return of_words

    def completed_answers(self, found, asked):
        ends = np.cumsum([len(words) for words in asked])
        return np.split(super().completed_answers(found, asked), ends[:-1])

    def made_lesson(self) -> TagLesson:
        return TagLesson(self.recipe.teacher.weight, self.recipe.teacher.temperature)

    def collator(self, packed: bool) -> Callable:
        return TagsBeside(super().collator(packed).collate, self.tokenizer.padding_side == "left")


class TagsBeside(BesideCollator):
    """Batches with WORDS (B, T) and the teacher's answers to the words of each row (B, W, K), padded with NaN."""

    def __init__(self, collate: Callable, left: bool):
        super().__init__(collate)
        self.left = left

    def joined(self, name: str, values: list) -> "torch.Tensor":
        if name == WORDS:
            return pad(values, 0, self.left)
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=float("nan"))


TEACHERS.add("tags", TaughtTags)
