"""Tags of words: how they mark entities, and how words and their tags map to tokens."""

from collections.abc import Sequence

from ..errors import UserError
from ..metrics.tag_parts import NO_TYPE, OUTSIDE, parts, spelled
from ..recipes.types import show

# Scheme -> the marks that may precede or follow the type of an entity. bio is also called BIO2 or IOB2, bioes IOBES,
# bilou BILUO, bmewo BMEOW. Of schemes with equally many of the tags the first one is taken.
SCHEMES = {"io": "I", "bio": "BI", "iob1": "BI", "bioes": "BIES", "bilou": "BILU", "bmes": "BMES", "bmewo": "BMEW"}


def is_tag_of(tag: str, scheme: str) -> bool:
    mark, kind = parts(tag)
    return tag == OUTSIDE or scheme == "plain" or (kind != "" and mark in SCHEMES[scheme])


def scheme_of(names: Sequence[str]) -> str:
    """The scheme of most tags of these names.

    plain, where no tag beside O names a type of entity, and those of the scheme are not more than half, or none is as
    in bio.
    """
    marked = [name for name in names if name != OUTSIDE]
    counts = {scheme: sum(is_tag_of(name, scheme) for name in marked) for scheme in SCHEMES}
    scheme = max(counts, key=counts.__getitem__)
    typed = OUTSIDE in names and any(is_tag_of(name, "bio") and parts(name)[1] != NO_TYPE for name in marked)
    most = counts["bio"] and (typed or 2 * counts[scheme] > len(marked))
    return scheme if most or counts[scheme] == len(marked) > 0 else "plain"


def check_scheme(names: Sequence[str], scheme: str) -> None:
    """Raise UserError for the first tag that is none of the scheme, nor one that is learned for it."""
    for name in names:
        if not is_tag_of(name, scheme) and not is_tag_of(name, "bio"):
            known = ", ".join([OUTSIDE, *(f"{mark}-..." for mark in SCHEMES[scheme])])
            raise UserError(f"task.scheme={scheme}: {name!r} is no tag of it ({known}); the tags are {show(names)}")


def tags_of_tokens(tag: str, number: int, scheme: str) -> list[str]:
    """The tags of the `number` tokens of a word, if each has a tag: an entity begins at the first token only."""
    if tag == OUTSIDE or scheme == "plain":
        return [tag] * number
    return [tag, *[spelled(f"I-{parts(tag)[1]}")] * (number - 1)]


def tag_of_space(before: str, after: str) -> str:
    """The tag of a space between words with these tags: that of the second word if an entity continues, else O."""
    mark, kind = parts(after)
    return after if mark == "I" and kind == parts(before)[1] else OUTSIDE


def word_of_each_token(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """The number of the word to which each token belongs, in a text of the words joined by spaces.

    offsets: of the tokens in that text. None for tokens of no word: special ones, and spaces. A token that covers
    several words belongs to the first.
    """
    bounds, at = [], 0
    for word in words:
        bounds.append((at, at + len(word)))
        at += len(word) + 1
    numbers, number = [], 0
    for start, end in offsets:
        if start == end:  # special tokens
            numbers.append(None)
            continue
        # A token may begin with the space before its word.
        while number < len(bounds) - 1 and (bounds[number][1] <= start or not words[number]):
            number += 1
        begin, stop = bounds[number] if bounds else (0, 0)
        numbers.append(number if start < stop and end > begin else None)
    return numbers
