"""Sentences about an account: what is unusual, for the terminal; all that came in, for reports and previews."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from ..words import counted
from .account import LEFT_OUT, NOTED, OTHERS, READ_AS, UNUSED, USED, Account, Entry, Key

SHOWN = 12  # names in a line
Item = tuple[Key, Entry]


class Sentence(NamedTuple):
    """How entries with one fate, of things of one kind, are said together.

    head: with {all}, the things counted; {each}, the entries in words, of which `shown` are listed, each by `each`;
    and {why}, which gives each reason a sentence of its own.
    """

    head: str
    each: str
    joint: str = ", "
    shown: int = SHOWN


# (fate, what) -> its sentence. In this order they are said; all others follow, by their reasons.
SENTENCES = {
    (LEFT_OUT, "document"): Sentence("{all} skipped: {each}", "{number} {why}"),
    (LEFT_OUT, "source document"): Sentence("no example was made of {all} ({why})", ""),
    (NOTED, ""): Sentence("{why}", ""),
    (READ_AS, "file"): Sentence("read as {why}: {each}", "{name}", shown=1),
    (LEFT_OUT, "row"): Sentence("{all} left out (data.bad_rows=skip): {each}", "{number} {why}", "; "),
    (READ_AS, "control token"): Sentence(
        "control tokens written in the texts are read as {why}: {each}", "{name} ({number} times)", shown=1000
    ),
    (UNUSED, "key"): Sentence("left out, or not written by the chat template: {each}", "{name} ({times})"),
    (UNUSED, "column"): Sentence("not read, and in some rows only: {each}", "{name!r} ({number})"),
    (READ_AS, "class"): Sentence("classes read as others: {each}", "{name!r} as {why!r} ({number})"),
}
ANY = Sentence("{all} {why}{each}", "{name!r} {number}")


def unusual(account: Account) -> list[str]:
    """A sentence for each thing that people should know, by the same rule for every reader; [] where nothing is."""
    # A column that only some rows have, and nothing reads, may be misspelt there.
    met, columns = account.number(USED, "row"), (UNUSED, "column")
    items = account.entries()
    return _said([item for item in items if not item[1].is_usual or (item[0][:2] == columns and item[1].number < met)])


def lines(account: Account) -> list[str]:
    """All that came in: what was used and not used, in a line each kind, then the sentences on all else."""
    told, others = [], []
    for (fate, what), items in groupby(account.entries(), key=lambda item: item[0][:2]):
        items = list(items)
        if fate not in (USED, UNUSED):
            others += items
            continue
        names = [f"{key.name} {entry.number:,}".strip() for key, entry in items]
        plural = f"{what}es" if what.endswith("s") else f"{what}s"
        told.append(f"{plural}{' not read' * (fate == UNUSED)}: {listed(names, ', ', SHOWN)}")
    return [*told, *_said(others)]


def came_in(rows: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(a split, lines) for what came in for its rows that is not among their notes."""
    told = {split: [line for line in lines(one.account) if line not in one.notes] for split, one in rows.items()}
    return [(f"{split}, what came in", "\n".join(said)) for split, said in told.items() if said]


def _said(items: list[Item]) -> list[str]:
    """The sentences of these entries, in the order of SENTENCES."""
    order = {kind: number for number, kind in enumerate(SENTENCES)}

    def group(item: Item) -> tuple:
        kind = item[0][:2]
        by_why = "{why}" in SENTENCES.get(kind, ANY).head
        return (order.get(kind, len(order)), *kind, item[0].why if by_why else "")

    sentences = []
    for (_, fate, what, _), alike in groupby(sorted(items, key=group), key=group):
        alike = list(alike)
        sentences += _sentences(SENTENCES.get((fate, what), ANY), what, alike)
    return sentences


def _sentences(sentence: Sentence, what: str, alike: list[Item]) -> list[str]:
    alike = sorted(alike, key=lambda item: (item[0].name == OTHERS, -item[1].number, item[0]))
    each = [
        sentence.each.format(
            name=key.name, why=key.why, number=f"{entry.number:,}", times=counted(entry.number, "time")
        )
        for key, entry in alike
        if sentence is not ANY or key.name
    ]
    those = listed(each, sentence.joint, sentence.shown)
    if sentence is ANY and those:
        those = f": {those}"
    total, why = sum(entry.number for _, entry in alike), alike[0][0].why
    said = sentence.head.format(all=counted(total, what.removeprefix("source ")), each=those, why=why)
    hints = [(key, entry) for key, entry in alike if entry.hint]
    if "{why}" in sentence.head:
        return [f"{said}; {hints[0][1].hint}" if hints else said]
    return [said, *(_with_places(key, entry) for key, entry in sorted(hints, key=lambda item: item[0].why))]


def _with_places(key: Key, entry: Entry) -> str:
    """Where things were that a setting could read: the places, and the setting."""
    more = entry.number - len(entry.places)
    listed = ", ".join(entry.places) + (f" and {more:,} more" if more > 0 and entry.places else "")
    return f"{key.why}{': ' * bool(listed)}{listed}; {entry.hint}"


def listed(names: list[str], joint: str = ", ", shown: int = 8) -> str:
    """Names in a row, only the first ones of many."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return joint.join(names[:shown]) + more
