"""Control tokens (special tokens, such as <|endoftext|>) that are written in a text: there they are ordinary text."""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable

from ..lazy import tokenizers, transformers
from ..open_tokenizer import has_languages
from ..patches import write

_UNWRITTEN = "\U0010ffff" * 2  # in no text: Unicode reserves it for internal use by programs


def text_backend(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """A copy that reads plain text only: it neither truncates nor pads, and recognises no control token in a text.

    Control tokens keep their ids under names that no text holds. The tokenizers library's `encode_special_tokens` is
    not enough: vocabularies of Unigram and WordLevel hold control tokens as words, and copies lose the setting.
    """
    state = json.loads(backend.to_str())
    state["truncation"] = state["padding"] = None
    control = [token for token in state["added_tokens"] if token["special"]]
    names = {token["content"]: _UNWRITTEN + token["content"] for token in control}
    for token in control:
        token |= {"content": names[token["content"]], "normalized": False}
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(entry, entry): number for entry, number in model["vocab"].items()}
    else:  # of Unigram: pairs in the order of their ids
        model["vocab"] = [(names.get(entry, entry), score) for entry, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if names.keys().isdisjoint((*pair, "".join(pair)))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return type(backend).from_str(json.dumps(state))


def text_tokenizer(tokenizer: "transformers.PreTrainedTokenizerFast") -> "transformers.PreTrainedTokenizerFast":
    """A copy for calls with texts: it puts control tokens around them, but recognises none in them.

    A copy also because truncation stays switched on in a tokenizer that was called with it, and would be saved.
    """
    copied = copy.deepcopy(tokenizer)
    copied.split_special_tokens = True
    if not has_languages(tokenizer):  # these tokenizers find languages by token names
        write(copied, "_tokenizer", text_backend(tokenizer.backend_tokenizer))
    return copied


class ControlTokens:
    """The control tokens of a tokenizer, to be found in texts."""

    def __init__(self, tokenizer: "transformers.PreTrainedTokenizerFast"):
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        self.names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self.names)) or "(?!)")

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """How often each control token is written in the texts."""
        return Counter(name for text in texts for name in self._pattern.findall(text))

    def hide(self, text: str) -> str:
        """The text with a mark in place of each control token; `split` finds the marks again."""
        return self._pattern.sub(lambda found: _UNWRITTEN + chr(2**20 + self.names.index(found[0])), text)

    def split(self, text: str) -> list[tuple[str, str | None]]:
        """The parts of a text with marks, in order: (part, the control token that it is the mark of)."""
        parts = re.split(f"({_UNWRITTEN}.)", text)
        return [(part, self.names[ord(part[-1]) - 2**20] if i % 2 else None) for i, part in enumerate(parts) if part]
