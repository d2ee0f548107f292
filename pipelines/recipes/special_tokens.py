"""Special tokens of tokenizers that a recipe trains, and their places around a text (values of tokenizer.framing).

none: no tokens around a text. cls_sep: CLS a SEP, for a pair CLS a SEP b SEP. eos: a END, for a pair a END b END.
This module imports only the standard library, because recipes are checked with it.
"""

from .schema import TokenizerSection

END, PAD, UNKNOWN = "<|endoftext|>", "<|pad|>", "<|unk|>"
CLS, SEP, MASK = "<|cls|>", "<|sep|>", "<|mask|>"
SENTINELS = 100  # T5's number

# Types that can encode any text, and so need no unknown token: how many entries this takes, and which they are.
WRITES_EVERY_TEXT = {"byte_bpe": (256, "256 bytes")}

# Settings, and the types that ignore them.
WITHOUT_EFFECT = {
    "lowercase": ("byte_bpe", "char"),
    "min_frequency": ("unigram", "char"),
}


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
