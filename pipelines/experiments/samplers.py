"""The combinations of a sweep, as members without a folder: a grid, random ones, or those that Optuna chooses."""

import hashlib
import itertools
import json
import random
import re
from typing import Any

from ..errors import UserError
from ..recipes.secrets import without_secrets
from .study import Member
from .sweep_file import Range, Sweep, setting

LONGEST = 120  # characters in a folder's name
VARIANT = "variant"
MORE_TRIES = 50  # draws for each combination, as a draw may repeat an earlier one


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+=,-]+", "-", text).strip("-.")


def written(value: Any) -> str:
    """A value as it stands in a folder's name: true, null, 0.001; full-sliding for a list; of a URL no secret."""
    if isinstance(value, list):
        return "-".join(map(written, value))
    return json.dumps(value) if value is None or isinstance(value, bool) else str(without_secrets(value))


def label_of(value: Any) -> str:
    """A text that tells a value from the others, without the signatures in it, which may differ in the next command."""
    return repr(without_secrets(value))


def combination(sweep: Sweep, values: dict[str, Any]) -> Member:
    """The member of some values: a variant's settings come first, so that settings varied beside it win."""
    bundle = sweep.variants[values[VARIANT]] if VARIANT in values else []
    settings = [*bundle, *(setting(key, value) for key, value in values.items() if key != VARIANT)]
    return Member(name_of(values, axes(sweep)), settings=settings, values=values)


def name_of(values: dict[str, Any], choices: dict[str, list | Range]) -> str:
    """A folder's name: `norm_position=pre,learning_rate=0.001`.

    choices: all values of each setting; a value that another one would be written as gets a hash.
    """
    bare, parts = [key.rpartition(".")[2] for key in values], []
    for (key, value), short in zip(values.items(), bare):
        label = key if bare.count(short) > 1 else short
        part = value if key == VARIANT else f"{label}={written(value)}"
        others = choices[key] if isinstance(choices[key], list) else []
        if sum(_plain(written(one)) == _plain(written(value)) for one in others) > 1:
            part += f"-{_hash(label_of(value))}"
        parts.append(part)
    name = _plain(",".join(parts))
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{_hash(name)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def axes(sweep: Sweep) -> dict[str, list | Range]:
    """{setting: its values}, the variants first."""
    return ({VARIANT: list(sweep.variants)} if sweep.variants else {}) | sweep.varied


def grid(sweep: Sweep) -> list[Member]:
    """Every combination, the last setting changing fastest."""
    names = axes(sweep)
    return [combination(sweep, dict(zip(names, values))) for values in itertools.product(*names.values())]


def drawn(sweep: Sweep, count: int, seed: int) -> list[Member]:
    """`count` different random combinations, or as many as there are; a larger count begins with the same ones."""
    generator, names, combinations = random.Random(seed), axes(sweep), {}
    for _ in range(count * MORE_TRIES):
        if len(combinations) == count:
            break
        values = {}
        for key, choices in names.items():
            share = generator.random()
            values[key] = choices.at(share) if isinstance(choices, Range) else choices[int(share * len(choices))]
        combinations.setdefault(repr(values), combination(sweep, values))
    return list(combinations.values())


class Optuna:
    """Combinations chosen by Optuna's TPE from the results so far (Bergstra et al. 2011).

    The study lives in memory. A resumed sweep makes its earlier choices again and tells the study their results, so
    that it goes on as if it had not been stopped: a choice depends on the seed, its number and the results so far.

    chosen: the parameters of this sweep's earlier choices; each new choice is appended to the list.
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
            key: optuna.distributions.CategoricalDistribution([label_of(value) for value in values])
            if not isinstance(values, Range)
            else (optuna.distributions.IntDistribution if values.whole else optuna.distributions.FloatDistribution)(
                values.min, values.max, log=values.log
            )
            for key, values in axes(sweep).items()
        }

    def choose(self, number: int) -> tuple[Member, Any]:
        """Combination `number`, counted from 0, and its trial, with which `tell` is called."""
        self.study.sampler = self.optuna.samplers.TPESampler(seed=self.seed + number, constant_liar=True)
        if number < len(self.chosen):
            self.study.enqueue_trial(self.chosen[number])
        trial = self.study.ask(self.choices)
        if number == len(self.chosen):
            self.chosen.append(trial.params)
        values = {}
        for key, choices in axes(self.sweep).items():
            param = trial.params[key]
            if isinstance(choices, Range):
                values[key] = param if choices.whole else min(choices.max, max(choices.min, float(f"{param:.4g}")))
            else:
                values[key] = next(value for value in choices if label_of(value) == param)
        return combination(self.sweep, values), trial

    def tell(self, trial: Any, value: float | None) -> None:
        """Tell the study the result of a trial; None: its run failed."""
        states = self.optuna.trial.TrialState
        self.study.tell(trial, value, state=states.FAIL if value is None else states.COMPLETE)


def known_combinations(sweep: Sweep, seed: int) -> list[Member] | None:
    """The combinations of a grid or a random choice; None where Optuna chooses them by the results."""
    if sweep.settings.sampler == "optuna":
        return None
    return grid(sweep) if sweep.settings.sampler == "grid" else drawn(sweep, sweep.settings.runs, seed)
