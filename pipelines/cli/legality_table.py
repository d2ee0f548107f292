"""Which positions, kinds of attention, norm placements and feed-forward layers go together, family by family.

All answers come from modeling/rules/legality.py, the table by which configs are refused; nothing is written twice.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.modeling.rules.legality import check_legal
from anyformer.modeling.traits import ATTENTION_KINDS, PARTS, POSITION_SCHEMES

from ..recipes import introspection

FEED_FORWARDS = {
    **{name: {"mlp_type": name, "num_experts": None} for name in PARTS.mlp_type},
    **{f"{name} experts": {"mlp_type": name, "num_experts": 4} for name in PARTS.mlp_type},
}


@dataclass(frozen=True)
class Cell:
    """One combination: its fields, and the sentence that refuses it, or None where it is legal."""

    family: str
    position: str
    kind: str
    norm: str
    feed_forward: str
    fields: dict
    refusal: str | None

    def __str__(self) -> str:
        return f"{self.family}: {self.position}, {self.kind}, {self.norm}-norm, {self.feed_forward}"


def cells(family: str) -> Iterator[Cell]:
    """Every combination of a family, legal or not."""
    parts = POSITION_SCHEMES, ATTENTION_KINDS, PARTS.norm_position, FEED_FORWARDS
    for position, kind, norm, feed_forward in itertools.product(*parts):
        fields = {"position_encoding": position, "norm_position": norm, "attention_pattern": [kind]}
        fields |= ATTENTION_KINDS[kind].companions | FEED_FORWARDS[feed_forward]
        yield Cell(family, position, kind, norm, feed_forward, fields, refusal(family, fields))


def refusal(family: str, fields: dict) -> str | None:
    """The error for these fields beside the family's defaults; None: they are legal."""
    try:
        check_legal(introspection.family_config(family, fields))
    except ValueError as error:
        return str(error)
    return None


def legality_markdown() -> str:
    """All tables as markdown: one for each family, with its refusals under it."""
    parts = [INTRODUCTION]
    for family in introspection.family_names():
        parts += [f"## {family}", *family_markdown(list(cells(family)))]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# What goes together

Rows are position schemes, columns are kinds of attention. "yes": allowed with every norm placement and feed-forward
layer named above the table. A number: refused, for the reason under the table. `anyformer list --legal` prints this
table from the rules that refuse a config. Tests build, train, save and load every "yes" on every attention backend,
and check that every other combination is refused with its sentence."""


def family_markdown(rows: list[Cell]) -> list[str]:
    """A family's table, with what all of its "yes" have in common above and its refusals below."""
    legal = {(cell.norm, cell.feed_forward) for cell in rows if cell.refusal is None}
    norms, feed_forwards = (list(dict.fromkeys(part)) for part in zip(*sorted(legal)))
    parts = [f"Norm placement {', '.join(norms)}; feed-forward {', '.join(feed_forwards)}."]
    one = next(cell for cell in rows if cell.refusal is None)
    similar = [cell for cell in rows if (cell.position, cell.kind, cell.norm) == (one.position, one.kind, one.norm)]
    parts += [f"Never: {sentence}." for sentence in dict.fromkeys(cell.refusal for cell in similar) if sentence]
    kinds = list(dict.fromkeys(cell.kind for cell in rows if cell.refusal is None))
    absent = [kind for kind in dict.fromkeys(cell.kind for cell in rows) if kind not in kinds]
    if absent:
        parts.append(f"Not in this family: {', '.join(absent)}.")
    reasons: list[str] = []
    table = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for position in dict.fromkeys(cell.position for cell in rows):
        answers = []
        for kind in kinds:
            combinations = [cell for cell in rows if (cell.position, cell.kind) == (position, kind)]
            answers.append(answer(combinations, legal, reasons))
        table.append(f"| {position} | {' | '.join(answers)} |")
    notes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    return [*parts, "\n".join(table), *([notes] if notes else [])]


def answer(here: list[Cell], legal: set, reasons: list[str]) -> str:
    """The table's entry for one position and kind; a refusal is its number in `reasons`, to which it is added."""
    refused = [cell for cell in here if cell.refusal is not None and (cell.norm, cell.feed_forward) in legal]
    if not refused:
        return "yes"
    numbers = []
    for sentence in dict.fromkeys(cell.refusal for cell in refused):
        if sentence not in reasons:
            reasons.append(sentence)
        numbers.append(str(reasons.index(sentence) + 1))
    some = [cell for cell in here if cell.refusal is None]
    words = ", ".join(numbers)
    return words if not some else f"{words} ({', '.join(f'{c.norm}-norm with {c.feed_forward}' for c in some)} yes)"
