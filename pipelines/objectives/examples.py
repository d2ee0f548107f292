"""Tasks over labelled examples with text: one row per example, of different lengths, padded in batches."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .base import Objective, check_examples
from .text import UNLIMITED, Tokenized

if TYPE_CHECKING:
    from ..data.documents import Corpus
    from ..data.examples import Examples


class TextTask(Tokenized, Objective):
    """A subclass says which columns it reads (`columns`), and encodes examples to rows (`rows`)."""

    section = "task"
    special_tokens = "cls_sep"
    row_noun = "example"
    loss_unit = "nats per example"

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Recipe field -> column that is read."""

    def text_columns(self) -> dict[str, str]:
        """Those of `columns` that hold text, on which a tokenizer is trained."""
        return self.columns()

    def check(self) -> None:
        check_examples(self)
        super().check()

    def open(self) -> "dict[str, Examples]":
        from ..data.examples import open_examples

        return open_examples(self.recipe.data, self.columns())

    def corpus(self, source: "Examples") -> "Corpus":
        from ..data.examples import ExampleTexts

        return ExampleTexts(source, self.text_columns())

    def prepare(self, splits: "dict[str, Examples]", cache: Path, progress: bool) -> None:
        self.processor = self.train_or_load_tokenizer(self.corpus(splits["train"]), cache, progress)
        if self.tokenizer.model_max_length > UNLIMITED:
            self.tokenizer.model_max_length = self.settings.max_length  # where pipelines cut a text

    def collator(self, packed: bool) -> Callable[[list[dict]], dict]:
        from ..data.length_batching import PaddingCollator

        return PaddingCollator(self.tokenizer.pad_token_id, self.tokenizer.padding_side == "left")
