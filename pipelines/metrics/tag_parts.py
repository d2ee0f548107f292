"""The tags by which words are marked as parts of entities, in all spellings. Standard library only."""

import re

OUTSIDE, NO_TYPE = "O", "_"  # NO_TYPE: seqeval's name for the type of an entity whose tags name none
TAG = re.compile(r"([BIESLUMW])(?:[-_](.+))?|(.+)[-_]([BIESLUMW])")
# Mark of any scheme (L, U of bilou; M of bmes; W of bmewo) -> the mark of bio, and of bioes, for the same word.
BIO, BIOES = dict(zip("BIESLUMW", "BIIBIBIB")), dict(zip("BIESLUMW", "BIESESIS"))


def parts(tag: str) -> tuple[str, str]:
    """(mark, type) of a tag: ("B", "PER") of B-PER, B_PER, PER-B and PER_B, ("B", "_") of B; (tag, "") of any other."""
    found = TAG.fullmatch(tag)
    return (tag, "") if found is None else (found[1] or found[4], found[2] or found[3] or NO_TYPE)


def spelled(tag: str, marks: dict[str, str] = BIO) -> str:
    """The tag of bio (or BIOES) that marks the same entities; a tag that marks none is returned unchanged."""
    mark, kind = parts(tag)
    return "-".join([marks[mark], kind][: 1 if kind == NO_TYPE else 2]) if kind else tag
