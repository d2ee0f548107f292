"""Which combinations of a sweep are tried, in which order: a grid, or random ones."""

import hashlib
import itertools
import json
import random
import re
from dataclasses import dataclass
from typing import Any

from .sweep_file import Range, Sweep, setting

LONGEST = 120  # letters of a folder's name
VARIANT = "variant"
MORE_TRIES = 50  # draws for one combination that is none of those before


@dataclass(frozen=True)
class Combination:
    """One point of a sweep. values: {setting: value}, with `variant` where the sweep has variants."""

    values: dict[str, Any]
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """A folder's name: `norm_position=pre,learning_rate=0.001`."""
        bare = [key.rpartition(".")[2] for key in self.values]
        parts = []
        for key, short, value in zip(self.values, bare, self.values.values()):
            label = key if bare.count(short) > 1 else short
            parts.append(value if key == VARIANT else f"{label}={written(value)}")
        name = re.sub(r"[^A-Za-z0-9._+=,-]+", "-", ",".join(parts)).strip("-.")
        if len(name) <= LONGEST:
            return name
        return f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def written(value: Any) -> str:
    """A value as a recipe has it: true, null, 0.001, full-sliding of a list."""
    if isinstance(value, list):
        return "-".join(map(written, value))
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def combination(sweep: Sweep, values: dict[str, Any]) -> Combination:
    """The combination of some values: a variant's settings first, so that what is varied beside it wins."""
    bundle = sweep.variants[values[VARIANT]] if VARIANT in values else []
    return Combination(values, (*bundle, *(setting(key, value) for key, value in values.items() if key != VARIANT)))


def axes(sweep: Sweep) -> dict[str, list | Range]:
    """{setting: its values}, the variants first."""
    return ({VARIANT: list(sweep.variants)} if sweep.variants else {}) | sweep.varied


def grid(sweep: Sweep) -> list[Combination]:
    """Every combination, the last setting changing fastest."""
    names = axes(sweep)
    return [combination(sweep, dict(zip(names, values))) for values in itertools.product(*names.values())]


def drawn(sweep: Sweep, count: int, seed: int) -> list[Combination]:
    """`count` different combinations at random; all of them where there are no more. More of them begin with these."""
    generator, names, found = random.Random(seed), axes(sweep), {}
    for _ in range(count * MORE_TRIES):
        if len(found) == count:
            break
        values = {}
        for key, choices in names.items():
            share = generator.random()
            values[key] = choices.at(share) if isinstance(choices, Range) else choices[int(share * len(choices))]
        found.setdefault(repr(values), combination(sweep, values))
    return list(found.values())


def known_combinations(sweep: Sweep, seed: int) -> list[Combination]:
    """Those that are tried: of a grid, or at random."""
    return grid(sweep) if sweep.settings.sampler == "grid" else drawn(sweep, sweep.settings.runs, seed)
