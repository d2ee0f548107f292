"""What stands around a text: which special tokens a tokenizer trained for a recipe has, and where it puts them.

Standard library only: recipes are checked with it.
"""

from dataclasses import replace

from ..recipes.schema import Recipe, TokenizerSection
from .train import END, PAD, UNKNOWN

CLS, SEP, MASK = "<|cls|>", "<|sep|>", "<|mask|>"
SENTINELS = 100  # T5's number

# Framing of a text (none: nothing; cls_sep: CLS a SEP b SEP; eos: a END b END) that each objective and task needs.
NEEDED = {
    "causal": "none",
    "masked": "cls_sep",
    "span_corruption": "eos",
    "sequence_classification": "cls_sep",
    "translation": "eos",
}
# Where a task needs a pooled vector, the family says which token gives it: a decoder's last, a decoder stack's eos.
OF_FAMILY = {"decoder": "none", "moe": "none", "seq2seq": "eos"}


def framing_of(recipe: Recipe) -> str:
    """The framing of the recipe's own tokenizer: as set, or what its task or else its objective needs."""
    if recipe.tokenizer.framing is not None:
        return recipe.tokenizer.framing
    task = getattr(recipe, "task", None)
    if task is None:
        return NEEDED[recipe.objective.name]
    needed = NEEDED[task.name]
    return OF_FAMILY.get(recipe.model.family, needed) if needed == "cls_sep" else needed


def tokenizer_section(recipe: Recipe) -> TokenizerSection:
    """The tokenizer section with its framing and number of sentinels spelled out, as the recipe needs them."""
    section, task = recipe.tokenizer, getattr(recipe, "task", None)
    sentinels = section.sentinels
    if sentinels is None:
        sentinels = SENTINELS if task is None and recipe.objective.name == "span_corruption" else 0
    return replace(section, framing=framing_of(recipe), sentinels=sentinels)


def sentinel(number: int) -> str:
    """The token that stands for the `number`-th left-out span, counted from 0, named as T5's are."""
    return f"<extra_id_{number}>"


def special_tokens(section: TokenizerSection) -> list[str]:
    """Special tokens of a tokenizer trained for this section, in order of their ids. No framing counts as `none`."""
    unknown = [] if section.type == "byte_bpe" else [UNKNOWN]  # bytes can write every text
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
