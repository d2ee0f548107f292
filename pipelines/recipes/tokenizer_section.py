"""The tokenizer section of a recipe, and the special tokens of tokenizers that it trains, by its `framing`.

none: no tokens around a text. cls_sep: CLS a SEP, for a pair CLS a SEP b SEP. eos: a END, for a pair a END b END.
This module imports only the standard library, because recipes are checked with it.
"""

from dataclasses import dataclass
from typing import Literal

from .introspection import doc

END, PAD, UNKNOWN = "<|endoftext|>", "<|pad|>", "<|unk|>"
CLS, SEP, MASK = "<|cls|>", "<|sep|>", "<|mask|>"
SENTINELS = 100  # T5's number

# Types that can encode any text, and so need no unknown token: how many entries this takes, and which they are.
WRITES_EVERY_TEXT = {"byte_bpe": (256, "256 bytes")}

# Settings, and the types that ignore them.
WITHOUT_EFFECT = {"lowercase": ("byte_bpe", "char"), "min_frequency": ("unigram", "char")}


@dataclass(frozen=True)
class TokenizerSection:
    type: Literal["byte_bpe", "wordpiece", "unigram", "char"] = doc(
        "algorithm of the tokenizer trained on the training text; in llama.cpp and Ollama byte_bpe can be served",
        "byte_bpe",
    )
    vocab_size: int | None = doc(
        "entries, special tokens included; for char the default keeps every character", None, at_least=2, at_most=2**24
    )
    name_or_path: str | None = doc("take this pretrained tokenizer instead of training one")
    chat_template: str | None = doc(
        "the chat template: a file of Jinja, or a shipped one: plain (every vocabulary can write it), chatml, "
        "chatml_tools (thoughts, tools and calls, too); null: the tokenizer's own, for chats else plain"
    )
    special_tokens: list[str] = doc(
        "further special tokens, after those that the tokenizer has anyway; written in a text they are text", []
    )
    framing: Literal["none", "cls_sep", "eos"] | None = doc(
        "what stands around a text: cls_sep: <|cls|> text <|sep|>, and there is a <|mask|>; eos: text <|endoftext|>; "
        "null: what the objective or task needs"
    )
    sentinels: int | None = doc(
        "tokens <extra_id_0>, <extra_id_1>, ... that stand for left-out spans; null: as many as the objective needs",
        at_least=0,
        at_most=100_000,
    )
    lowercase: bool = doc(
        "lower-case the text first (unigram; wordpiece, which drops accents, too, as BERT's uncased models do)", False
    )
    min_frequency: int = doc("rarer pairs are not merged (byte_bpe, wordpiece)", 2, at_least=1)
    max_training_bytes: int = doc("it is trained on the first so many bytes of text", 200_000_000, at_least=1)


def sentinel(number: int) -> str:
    """The token that stands for the `number`-th left-out span, counted from 0, named as T5's are."""
    return f"<extra_id_{number}>"


def special_tokens(section: TokenizerSection) -> list[str]:
    """Special tokens of a tokenizer trained for this section, in order of their ids. framing null counts as `none`."""
    unknown = [] if section.type in WRITES_EVERY_TEXT else [UNKNOWN]
    framed = section.framing == "cls_sep"
    tokens = [CLS, SEP, PAD, *unknown, MASK] if framed else [END, PAD, *unknown]
    return [*tokens, *section.special_tokens, *map(sentinel, range(section.sentinels or 0))]


def begin_and_end(framing: str | None) -> tuple[str | None, str]:
    """Beginning-of-text and end-of-text token. With `eos` a text has no beginning, as in T5."""
    return {"cls_sep": (CLS, SEP), "eos": (None, END)}.get(framing, (END, END))


def template(framing: str | None) -> dict[str, str] | None:
    """Templates of a text and of a pair for a post-processor of tokenizers, with segment ids; None: no tokens."""
    if framing == "cls_sep":
        return {"single": f"{CLS}:0 $A:0 {SEP}:0", "pair": f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1"}
    if framing == "eos":
        return {"single": f"$A:0 {END}:0", "pair": f"$A:0 {END}:0 $B:0 {END}:0"}
    return None
