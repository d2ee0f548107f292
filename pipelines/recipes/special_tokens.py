"""What recipes are checked with of a tokenizer that is trained: its special tokens, and where they stand around a text.

none: nothing stands around a text. cls_sep: CLS a SEP, of a pair CLS a SEP b SEP. eos: a END, of a pair a END b END.
Standard library only: recipes are checked with it.
"""

from .schema import TokenizerSection

END, PAD, UNKNOWN = "<|endoftext|>", "<|pad|>", "<|unk|>"
CLS, SEP, MASK = "<|cls|>", "<|sep|>", "<|mask|>"
SENTINELS = 100  # T5's number

# Types that can write every text, so that nothing is unknown to them: the entries this takes, and what these are.
WRITES_EVERY_TEXT = {"byte_bpe": (256, "256 bytes"), "bpe_byte_fallback": (257, "256 bytes, the space")}

# Settings, and the types that make no use of them.
WITHOUT_EFFECT = {
    "lowercase": ("byte_bpe", "bpe_byte_fallback", "char"),
    "min_frequency": ("unigram", "char"),
}


def sentinel(number: int) -> str:
    """The token that stands for the `number`-th left-out span, counted from 0, named as T5's are."""
    return f"<extra_id_{number}>"


def special_tokens(section: TokenizerSection) -> list[str]:
    """Special tokens of a tokenizer trained for this section, in order of their ids. No framing counts as `none`."""
    unknown = [] if section.type in WRITES_EVERY_TEXT else [UNKNOWN]
    framed = section.framing == "cls_sep"
    own = [CLS, SEP, PAD, *unknown, MASK] if framed else [END, PAD, *unknown]
    return [*own, *section.special_tokens, *map(sentinel, range(section.sentinels or 0))]


def begin_and_end(framing: str | None) -> tuple[str | None, str]:
    """Beginning-of-text and end-of-text token. With `eos` a text has no beginning, as in T5."""
    return {"cls_sep": (CLS, SEP), "eos": (None, END)}.get(framing, (END, END))


def template(framing: str | None) -> dict[str, str] | None:
    """The text and the pair of texts as a tokenizers post-processor writes them, with segment numbers; or None."""
    if framing == "cls_sep":
        return {"single": f"{CLS}:0 $A:0 {SEP}:0", "pair": f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1"}
    if framing == "eos":
        return {"single": f"$A:0 {END}:0", "pair": f"$A:0 {END}:0 $B:0 {END}:0"}
    return None
