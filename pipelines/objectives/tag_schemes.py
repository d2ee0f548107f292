"""Tags of words: how they mark entities, and how words and their tags map to tokens."""

from collections.abc import Sequence

from ..errors import UserError
from ..recipes.types import show

OUTSIDE = "O"
# Scheme -> the marks that may precede the type of an entity. bio is also called BIO2 or IOB2, bioes IOBES.
SCHEMES = {"bio": "BI", "iob1": "BI", "bioes": "BIES", "plain": ""}


def parts(tag: str) -> tuple[str, str]:
    """(mark, type) of a tag: ("B", "PER") of B-PER, ("O", "") of O."""
    mark, _, kind = tag.partition("-")
    return mark, kind


def is_tag_of(tag: str, scheme: str) -> bool:
    mark, kind = parts(tag)
    return tag == OUTSIDE or scheme == "plain" or (mark in tuple(SCHEMES[scheme]) and kind != "")


def scheme_of(names: Sequence[str]) -> str:
    """The scheme that tags of these names follow: bio or bioes, else plain."""
    if any(name != OUTSIDE and is_tag_of(name, "bioes") for name in names):
        return next((scheme for scheme in ("bio", "bioes") if all(is_tag_of(name, scheme) for name in names)), "plain")
    return "plain"


def check_scheme(names: Sequence[str], scheme: str) -> None:
    """Raise UserError for the first tag that is none of the scheme."""
    for name in names:
        if not is_tag_of(name, scheme):
            known = ", ".join([OUTSIDE, *(f"{mark}-..." for mark in SCHEMES[scheme])])
            raise UserError(f"task.scheme={scheme}: {name!r} is no tag of it ({known}); the tags are {show(names)}")


def as_bio(tag: str) -> str:
    """The bio tag for a bioes tag. It marks the same entities, and transformers' pipelines group only bio tags."""
    mark, kind = parts(tag)
    return f"{'B' if mark == 'S' else 'I'}-{kind}" if mark in ("S", "E") and kind else tag


def tags_of_tokens(tag: str, number: int, scheme: str) -> list[str]:
    """The tags of the `number` tokens of a word, if each has a tag: an entity begins at the first token only."""
    if tag == OUTSIDE or scheme == "plain":
        return [tag] * number
    return [tag, *[f"I-{parts(tag)[1]}"] * (number - 1)]


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
