"""The file of a sweep, in configs/experiments or of the user, and the lists on the command line: what is varied."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError, refuse_unknown
from ..recipes.introspection import check_beside
from ..recipes.recipe_files import is_file_of, read_yaml_file
from ..recipes.schema import doc
from ..recipes.secrets import without_secrets
from ..recipes.strict_yaml import parse_yaml
from ..recipes.types import as_mapping, build, show

SECTIONS = ("model", "tokenizer", "data", "objective", "task", "training", "evaluation")  # of a recipe
RANGE = {"min", "max", "log"}
Sampler = Literal["grid", "random", "optuna"]


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, which samplers other than the grid draw from; whole numbers where both ends are."""

    min: float
    max: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.min, int) and isinstance(self.max, int)

    def at(self, share: float) -> float:
        """The number at a share in [0, 1) of the way from min to max, on a logarithmic scale if `log`."""
        if self.log:
            value = math.exp(math.log(self.min) + share * (math.log(self.max) - math.log(self.min)))
        else:
            value = self.min + share * (self.max - self.min)
        return min(self.max, round(value)) if self.whole else min(self.max, max(self.min, float(f"{value:.4g}")))


@dataclass(frozen=True)
class SweepSettings:
    """How the runs of a sweep are chosen; what a sweep's YAML has beside a recipe's sections, `vary` and `variants`."""

    recipe: str = doc("a YAML file, or the name of a shipped recipe")
    description: str = doc("one line, for people", default="")
    metric: str | None = doc("what runs are ordered by; null: validation_loss, or the recipe's evaluation.best_metric")
    sampler: Sampler = doc("grid: every combination; random: some of them; optuna: chosen by the results", "grid")
    runs: int | None = doc("combinations tried; null: all of a grid", at_least=1)
    seeds: int | str | None = doc("number of seeds, or a list such as 1,2,3, for each combination; null: the recipe's")
    columns: list[str] = doc("what is measured of each finished run beside its metrics, such as grad_norm", [])
    by_position: int | None = doc(
        "length of rows on which the perplexity by position of all finished runs is measured in the end, for one chart",
        at_least=2,
    )
    evaluate: str | None = doc("a model that is measured with each combination; null: each combination is trained")
    max_examples: int | None = doc("evaluate, by_position: at most so many examples; null: all", at_least=1)


@dataclass(frozen=True)
class Sweep:
    """A recipe with settings that all runs share, and what is varied.

    varied: {setting: values, or a Range}. variants: {name: settings that go together}, one more thing that is varied.
    """

    settings: SweepSettings
    fixed: list[str] = field(default_factory=list)
    varied: dict[str, list | Range] = field(default_factory=dict)
    variants: dict[str, list[str]] = field(default_factory=dict)


def read_sweep(name_or_path: str, overrides: Sequence[str], **settings: Any) -> Sweep:
    """The sweep of a file or of a recipe, with what the command line says.

    Args:
        overrides: `section.key=value`; a list or a range {min, max, log} as the value is varied, and a list that is
            one value stands in a list of its own, [[a, b]]. They win over the file's.
        settings: of SweepSettings, which win over the file's; None leaves one out.

    Raises UserError: an unknown key, a range without ends, nothing that varies, or as `load_recipe`.
    """
    chosen = {name: value for name, value in settings.items() if value is not None}
    if is_file_of(name_or_path, "experiments", "recipe"):
        sweep = _sweep_of_file(name_or_path, chosen)
    else:
        sweep = Sweep(build(SweepSettings, {**chosen, "recipe": name_or_path}, "sweep"))
    for text in overrides:
        key, equals, value = text.partition("=")
        values = _varied(parse_yaml(value, key), key) if equals and value.lstrip()[:1] in ("[", "{") else None
        if values is None:
            sweep.varied.pop(key, None)
            sweep.fixed.append(text)
        else:
            sweep.varied[key] = values
    if not sweep.varied and len(sweep.variants) < 2:
        read_yaml_file(sweep.settings.recipe, "recipes", "recipe")  # raises where there is no such recipe
        raise UserError(f"sweep {name_or_path}: nothing varies; give values in brackets, such as 'training.seed=[1,2]'")
    _check_sampler(sweep)
    _check_evaluate(sweep.settings)
    return sweep


def _sweep_of_file(name_or_path: str, given: dict) -> Sweep:
    data, stem = read_yaml_file(name_or_path, "experiments", "sweep")
    where, known = f"sweep {stem}", [*SweepSettings.__dataclass_fields__, *SECTIONS, "vary", "variants"]
    refuse_unknown(data, known, where)
    settings = {key: value for key, value in data.items() if key in SweepSettings.__dataclass_fields__}
    settings = build(SweepSettings, {**settings, **given}, where)
    beside = Path(name_or_path).expanduser().parent / settings.recipe
    settings = replace(settings, recipe=str(beside)) if beside.is_file() else settings
    sweep = Sweep(settings, _settings_of({key: data[key] for key in SECTIONS if key in data}, where))
    for key, value in as_mapping(data.get("vary"), f"{where}: vary").items():
        sweep.varied[key] = _varied(value, f"{where}: vary.{key}")
        if sweep.varied[key] is None:
            raise UserError(f"{where}: vary.{key}={show(value)} is no list of values; write [a, b], or set it above")
    for name, sections in as_mapping(data.get("variants"), f"{where}: variants").items():
        place = f"{where}: variants.{name}"
        refuse_unknown(as_mapping(sections, place), SECTIONS, place)
        sweep.variants[str(name)] = _settings_of(as_mapping(sections, place), place)
    return sweep


def _settings_of(sections: dict, where: str) -> list[str]:
    """Sections of a recipe as settings of the command line."""
    return [
        setting(f"{section}.{key}", value)
        for section, settings in sections.items()
        for key, value in as_mapping(settings, f"{where}: {section}").items()
    ]


def setting(key: str, value: Any) -> str:
    """A setting as the command line has it."""
    return f"{key}={json.dumps(value)}"


def _varied(value: Any, where: str) -> list | Range | None:
    """The values of a list, a range, or None where the value is a single one. Raises UserError for a wrong range."""
    if isinstance(value, dict) and {"min", "max"} <= value.keys() <= RANGE:
        ends = value["min"], value["max"]
        numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in ends)
        if not numbers or not ends[0] < ends[1] or (value.get("log") and ends[0] <= 0):
            raise UserError(f"{where}={show(value)} is no range; min must be below max, and above 0 with log")
        return Range(*ends, bool(value.get("log", False)))
    if not isinstance(value, list) or not value:  # an empty list is a value: no prompts, no metrics
        return None
    public = without_secrets(value)
    twice = [one for number, one in enumerate(public) if one in public[:number]]
    if twice:
        raise UserError(f"{where}={show(public)} names {show(twice[0])} twice")
    return value


def _check_sampler(sweep: Sweep) -> None:
    """Raise UserError for a range or a number of runs in a grid, or for another sampler without a number of runs."""
    settings, ranges = sweep.settings, [key for key, values in sweep.varied.items() if isinstance(values, Range)]
    if settings.sampler == "grid":
        if ranges:
            raise UserError(f"{ranges[0]} is a range, which a grid cannot walk; give --sampler random or optuna")
        if settings.runs is not None:
            raise UserError(f"--runs {settings.runs}: a grid tries every combination; give --sampler random or optuna")
    elif settings.runs is None:
        raise UserError(f"--sampler {settings.sampler} needs --runs, the number of combinations it tries")


def _check_evaluate(settings: SweepSettings) -> None:
    """Raise UserError for settings that only go with training beside `evaluate`, or the other way round."""
    if settings.evaluate is None:
        if settings.max_examples is not None and settings.by_position is None:
            raise UserError(f"--max-examples {settings.max_examples} is of --evaluate and of by_position; add either")
        return
    why = "is of runs that are trained; leave it out, or evaluate"
    check_beside("sweep", settings, [(f"{name}=", True, why) for name in ("seeds", "by_position", "columns")])
