"""The YAML of a suite: a list of tasks, each a recipe with settings that override it."""

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UserError, refuse_unknown
from .recipe_files import read_yaml_file
from .schema import doc
from .types import as_mapping, build, show

KEYS = ("description", "suite")
SECTIONS = ("model", "data", "objective", "task", "training", "evaluation")  # of a recipe


@dataclass(frozen=True)
class SuiteTask:
    """One entry of a suite. settings: overrides of the recipe, in the form section.key=value."""

    recipe: str = doc("a YAML file, or the name of a shipped recipe")
    name: str | None = doc("what results are called; null: the recipe's name")
    split: str | None = doc("test or validation; null: test where the recipe has one")
    max_examples: int | None = doc("at most so many examples, spread over the split", at_least=1)
    settings: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The name of its results."""
        return self.name or Path(self.recipe).stem

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True)
class Suite:
    name: str
    description: str
    tasks: list[SuiteTask]


def read_suite(name_or_path: str) -> Suite:
    """The suite of a YAML file or a shipped name.

    Raises UserError: no such suite, no tasks in it, an unknown key, or two tasks with the same name.
    """
    data, stem = read_yaml_file(name_or_path, "suites", "suite")
    where = f"suite {stem}"
    refuse_unknown(data, KEYS, where)
    entries = data.get("suite")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: suite={show(entries)} must be a list of recipes, such as [imdb_classify]")
    folder = Path(name_or_path).expanduser().parent
    tasks = [_task(entry, f"{where}: suite.{number}", folder) for number, entry in enumerate(entries)]
    titles = [task.title for task in tasks]
    for title in titles:
        if titles.count(title) > 1:
            raise UserError(f"{where}: two tasks are called {title!r}; give one of them a name")
    return Suite(stem, str(data.get("description") or ""), tasks)


def _task(entry: Any, where: str, folder: Path) -> SuiteTask:
    entry = {"recipe": entry} if isinstance(entry, str) else as_mapping(entry, where)
    keys = [known.name for known in fields(SuiteTask) if known.name != "settings"]
    refuse_unknown(entry, [*keys, *SECTIONS], where)
    if not isinstance(entry.get("recipe"), str):
        raise UserError(f"{where}: recipe={show(entry.get('recipe'))} must name a recipe")
    task = build(SuiteTask, {key: value for key, value in entry.items() if key in keys}, where)
    beside = folder / task.recipe
    settings = []
    for section in SECTIONS:
        overrides = as_mapping(entry.get(section), f"{where}.{section}")
        settings += [f"{section}.{key}={json.dumps(value)}" for key, value in overrides.items()]
    return replace(task, recipe=str(beside) if beside.is_file() else task.recipe, settings=settings)
