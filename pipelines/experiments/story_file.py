"""What a story trains: recipes one after the other, each on the model of the one before; configs/stories, or a YAML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean, refuse_unknown
from ..recipes.checks import SOURCE_KINDS
from ..recipes.compose import recipe_from_dict
from ..recipes.recipe_files import is_file_of, read_yaml_file
from ..recipes.schema import Recipe, parts_of_recipe
from ..recipes.types import as_mapping, show

FOLDER_SETTING = "training.output_dir"


@dataclass(frozen=True)
class Step:
    """A step of a story.

    recipe: as it is trained. planned: the same before anything is trained, with the architecture and the vocabulary
    that the steps before it make. makes_tokenizer: it trains a tokenizer alone.
    """

    name: str
    recipe: Recipe
    planned: Recipe
    makes_tokenizer: bool

    @property
    def folder(self) -> Path:
        return Path(self.recipe.training.output_dir)


@dataclass(frozen=True)
class Story:
    """name: as the command line has it. folder: holds that of each step, and the page of all."""

    name: str
    description: str
    folder: Path
    steps: list[Step]


def is_story(name_or_path: str) -> bool:
    """Whether the word names a story: one that is shipped, or a YAML with a line that begins `steps:`."""
    return is_file_of(name_or_path, "stories", "steps")


def read_story(name_or_path: str, overrides: Sequence[str] = (), trust_remote_code: bool = False) -> Story:
    """The story of a file or of a shipped name, each of its recipes composed and checked.

    Args:
        overrides: STEP.section.key=value wins over the recipe of a step, section.key=value over those of all;
            training.output_dir is the folder of the story.

    Raises:
        UserError: no steps, an unknown step or key, or as `recipe_from_dict`, with the name of the step.
    """
    data, stem = read_yaml_file(name_or_path, "stories", "story")
    where = f"story {stem}"
    refuse_unknown(data, ("description", "output_dir", "steps"), where)
    beside = Path(name_or_path).expanduser().parent
    given = as_mapping(data.get("steps"), f"{where}: steps")
    sections = {str(name): _sections(steps, f"{where}: steps.{name}", beside) for name, steps in given.items()}
    if not sections:
        raise UserError(f"{where}: steps names none; write a recipe for each, such as steps.pretraining.model")
    _check_names(list(sections), where)
    folder = Path(data.get("output_dir") or f"runs/{stem}")
    own: dict[str, list[str]] = {name: [] for name in sections}
    for text in overrides:
        key, _, value = text.partition("=")
        step, dot, rest = text.partition(".")
        if key == FOLDER_SETTING:
            folder = Path(value)
        elif step in own and dot:
            own[step].append(rest)
        elif step in _section_names():
            for settings in own.values():
                settings.append(text)
        else:
            near = did_you_mean(step, [*own, *_section_names()])
            raise UserError(f"{key}: {where} has no step {step!r}, and a recipe no section of that name{near}")
    steps = _composed(sections, own, folder, stem)
    for step in steps:
        step.recipe.trust_remote_code = step.planned.trust_remote_code = trust_remote_code
    return Story(name_or_path, str(data.get("description") or ""), folder, steps)


def _section_names() -> list[str]:
    return [part.name for part in parts_of_recipe()]


def _sections(given: Any, where: str, beside: Path) -> dict[str, Any]:
    """The sections of a step: its own, over those of the recipe that it names, a file beside the story's or shipped."""
    own = dict(as_mapping(given, where))
    base = own.pop("recipe", None)
    refuse_unknown(own, _section_names(), where)
    if base is None:
        return own
    file = beside / str(base)
    found, _ = read_yaml_file(str(file if file.is_file() else base), "recipes", f"{where}.recipe")
    for name, section in own.items():
        others = isinstance(section, dict) and isinstance(found.get(name), dict)
        if others and not (name == "data" and any(kind in section for kind in SOURCE_KINDS)):
            section = found[name] | section
        found[name] = section
    return found


def _check_names(names: list[str], where: str) -> None:
    """Raise UserError for a step that could not be told from a section, or is no name of a folder."""
    for name in names:
        if name in _section_names() or not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
            raise UserError(
                f"{where}: steps.{name} is {'a section of recipes' if name in _section_names() else show(name)}; name "
                f"the step by other letters, such as pretraining"
            )


def _composed(sections: dict[str, dict], own: dict[str, list[str]], folder: Path, stem: str) -> list[Step]:
    """The steps, each beginning from what those before it have made."""
    steps: list[Step] = []
    first = next((given for given in sections.values() if given.get("model")), {})
    for name, given in sections.items():
        alone = not steps and not any(given.get(section) for section in ("model", "objective", "task"))
        given = first | given if alone else given
        begun, planned = _begun(given, steps[-1]) if steps else (given, given)
        recipes = []
        for made, place in ((begun, folder / name), (planned, folder / f"{name}-planned")):
            training = (made.get("training") or {}) | {"output_dir": str(place)}
            try:
                recipes.append(recipe_from_dict({**made, "name": f"{stem}-{name}", "training": training}, own[name]))
            except UserError as error:
                raise UserError(f"step {name}: {error}") from error
        steps.append(Step(name, *recipes, makes_tokenizer=alone))
    return steps


def _begun(given: dict, before: Step) -> tuple[dict, dict]:
    """A step's sections as they are trained and as they are planned, with what the step before it has made."""
    model, made, place = given.get("model") or {}, before.planned.to_dict(), str(before.folder)
    if not before.makes_tokenizer:
        model = {name: value for name, value in model.items() if name != "name_or_path"}  # of the recipe it names
        begun = given | {"model": {"name_or_path": place, **model}}
        return begun, given | {"model": made["model"] | model, "tokenizer": made["tokenizer"]}
    size = before.recipe.tokenizer.vocab_size  # else a preset has its own
    model = model if size is None or "preset" not in model else {"vocab_size": size} | model
    begun = given | {"model": model, "tokenizer": {"name_or_path": place} | (given.get("tokenizer") or {})}
    return begun, given | {"model": model, "tokenizer": made["tokenizer"]}
