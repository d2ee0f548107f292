"""What stands out about the classes of a task: names that may be one, classes without rows, and rare ones."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from itertools import combinations

ALIKE = 0.85  # of difflib's ratio, from which two spellings may be one: "shiping" and "shipping" have 0.93
MUCH_RARER = 10  # times, from which an unlike spelling may be a slip
MOST = 200  # classes that are compared with each other
FEW = 10  # rows, below which a class is called rare


def _may_be_one(often: str, rare: str, counts: Mapping[str, int]) -> bool:
    """Whether two names are equal but for case and spaces, or alike and one much rarer."""
    first, second = ("".join(name.casefold().split()).strip(".,;:") for name in (often, rare))
    if first == second:
        return True
    # Numbers count something else, as in grade_1 and grade_2; short names are alike by chance.
    spelled = min(len(first), len(second)) > 3 and _digits(first) == _digits(second)
    if not spelled or counts[rare] * MUCH_RARER > counts[often]:
        return False
    return SequenceMatcher(None, first, second).ratio() >= ALIKE


def _digits(name: str) -> str:
    return "".join(sign for sign in name if sign.isdigit())


def class_notes(split: str, counts: Mapping[str, int], may_be_stratified: bool) -> list[str]:
    """Sentences about the classes of the rows of a split, whose numbers are `counts`."""
    notes, missing = [], [name for name, number in counts.items() if not number]
    if missing:
        way_out = (
            "; data.stratify=true gives it a share of each class" if may_be_stratified and split != "train" else ""
        )
        effect = "never learned" if split == "train" else "not measured"
        notes.append(f"no row of the class {_listed(missing)}, {effect} here{way_out}")
    if split == "train":
        few = min(FEW, sum(counts.values()) / max(1, len(counts)) / 2)
        rare = {name: number for name, number in counts.items() if 0 < number < few}
        if rare:
            notes.append(f"rare: {_listed([f'{name!r} with {number:,}' for name, number in rare.items()], '')}")
        names = sorted(counts, key=lambda name: (-counts[name], name))[:MOST]
        near = [(rare, often) for often, rare in combinations(names, 2) if _may_be_one(often, rare, counts)]
        if near:
            pairs = [f"{rare!r} ({counts[rare]:,}) and {often!r} ({counts[often]:,})" for rare, often in near]
            notes.append(f"classes that may be one: {_listed(pairs, '')}")
    return notes


def _listed(names: list[str], quote: str = "'") -> str:
    more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    return ", ".join(f"{quote}{name}{quote}" for name in names[:8]) + more
