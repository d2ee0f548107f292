"""Plug-ins that write words and tokens as class attributes of the row, which become its Words and Tokens."""

from dataclasses import replace
from functools import partial
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
    """Move the class attributes of a plug-in's objective into its words and tokens, and its method `sample_title`."""
    cls.words = replace(cls.words, **_taken(cls, WORDS))
    if tokens := _taken(cls, TOKENS):
        cls.tokens = replace(cls.tokens or Tokens(), **tokens)
    if title := _taken(cls, {"sample_title": "format"}):
        begin = cls.__init__

        def with_title(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            self.words = replace(self.words, sample=SimpleNamespace(format=partial(title["format"], self)))

        cls.__init__ = with_title


def _taken(cls: Any, names: dict[str, str]) -> dict[str, Any]:
    """{field: value} of those of the names that the class defines; they are taken out of it."""
    own = {name: vars(cls)[name] for name in names if name in vars(cls)}
    for name in own:
        delattr(cls, name)
    return {names[name]: value for name, value in own.items()}
