"""Distillation of word tags: the teacher reads the words of a sentence joined by spaces, with its own tokenizer.

Its answer for a word is the logits at the word's first token, or at the last one where its recipe says that the word's
tag was learned there. Words that its tokenizer has cut, or that have no token,
are learned from their labels only.
"""

from functools import cached_property

from ..errors import UserError
from ..lazy import np
from ..plugins import TEACHERS
from ..recipes.recipe_files import read_yaml_file, recipe_beside
from .data import Data
from .tagged_words import word_of_each_token
from .taught_texts import TaughtTexts, order_of_classes, refuse_weights
from .token_classification import words_asked


class TaughtTags(TaughtTexts):
    """The tags of words, learned from a teacher's logits."""

    def check(self) -> None:
        super().check()
        refuse_weights(self.objective)

    def before_training(self) -> None:
        super().before_training()
        if not self.teacher.tokenizer.is_fast:
            raise UserError(f"{self.teacher.words} has no tokenizer.json, and does not say where its tokens stand")

    def check_data(self, data: Data) -> None:
        order_of_classes(self.teacher, data.labels.names)

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
        return np.split(found[:, order_of_classes(self.teacher, data.labels.names)], ends[:-1])

    def _lesson(self):
        from .teacher_losses import TagLesson

        return TagLesson(self.section.weight, self.section.temperature)


TEACHERS.add("tags", TaughtTags)
