"""Which combinations of a sweep are tried, in which order: a grid, random ones, or those Optuna chooses."""

import hashlib
import itertools
import json
import random
import re
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
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


class Optuna:
    """Combinations chosen by Optuna's TPE from the results so far (Bergstra et al. 2011).

    The study lives in memory. What was chosen before is chosen again, and told what it reached, so a sweep goes on as
    if it had not been stopped: a choice depends on the seed, its number and the results so far.

    Args:
        chosen: what an earlier part of this sweep chose, as `chosen` of the object has it; longer with each choice.
    """

    def __init__(self, sweep: Sweep, seed: int, lower_is_better: bool, chosen: list[dict[str, Any]]):
        try:
            import optuna
        except ImportError:
            raise UserError("--sampler optuna needs optuna; install it with: pip install anyformer[optuna]") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.sweep, self.seed, self.optuna, self.chosen = sweep, seed, optuna, chosen
        self.study = optuna.create_study(direction="minimize" if lower_is_better else "maximize")
        self.choices = {
            key: optuna.distributions.CategoricalDistribution([repr(value) for value in values])
            if not isinstance(values, Range)
            else (optuna.distributions.IntDistribution if values.whole else optuna.distributions.FloatDistribution)(
                values.min, values.max, log=values.log
            )
            for key, values in axes(sweep).items()
        }

    def choose(self, number: int) -> tuple[Combination, Any]:
        """The combination with a number, from 0, and the trial whose result `tell` takes."""
        self.study.sampler = self.optuna.samplers.TPESampler(seed=self.seed + number, constant_liar=True)
        if number < len(self.chosen):
            self.study.enqueue_trial(self.chosen[number])
        trial = self.study.ask(self.choices)
        if number == len(self.chosen):
            self.chosen.append(trial.params)
        values = {}
        for key, known in axes(self.sweep).items():
            chosen = trial.params[key]
            if isinstance(known, Range):
                values[key] = chosen if known.whole else min(known.max, max(known.min, float(f"{chosen:.4g}")))
            else:
                values[key] = next(value for value in known if repr(value) == chosen)
        return combination(self.sweep, values), trial

    def tell(self, trial: Any, value: float | None) -> None:
        """What the combination reached; None where its run failed."""
        states = self.optuna.trial.TrialState
        self.study.tell(trial, value, state=states.FAIL if value is None else states.COMPLETE)


def known_combinations(sweep: Sweep, seed: int) -> list[Combination] | None:
    """Those that are known before the first result: of a grid, or at random; None where results choose them."""
    if sweep.settings.sampler == "optuna":
        return None
    return grid(sweep) if sweep.settings.sampler == "grid" else drawn(sweep, sweep.settings.runs, seed)
