"""Plug-ins that write words and tokens as class attributes of the row, which become its Words and Tokens."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from .tokens import Tokens

# A class attribute -> the field that it becomes.
WORDS = {"row_noun": "row", "loss_unit": "loss", "samples_are_answers": "answers"}
WORDS |= {name: name for name in ("use", "picture", "hub_task", "hub_tags")}
TOKENS = {
    "special_tokens": "framing",
    "framing_of_head": "of_head",
    "sentinels": "sentinels",
    "further_tokens": "further",
}


def with_words(cls: Any) -> None:
    """Put the class attributes of a plug-in's objective into its words and tokens, and its method `sample_title`."""
    own, begin = vars(cls), cls.__init__
    words = {field: own[name] for name, field in WORDS.items() if name in own}
    tokens = {field: own[name] for name, field in TOKENS.items() if name in own}
    cls.words = replace(cls.words, **words)
    if tokens:
        cls.tokens = replace(cls.tokens or Tokens(), **tokens)
    if "sample_title" in own:

        def with_title(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            title = SimpleNamespace(format=lambda prompt: self.sample_title(prompt))
            self.words = replace(self.words, sample=title)

        cls.__init__ = with_title
