"""A story: a study of recipes, each trained on the model of the one before, in a file of the package or yours."""

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..errors import UserError, did_you_mean, refuse_unknown
from ..recipes.compose import recipe_from_dict
from ..recipes.recipe_files import read_yaml_file
from ..recipes.schema import parts_of_recipe
from ..recipes.types import as_mapping
from .study import Member, Study

FOLDER_SETTING, REPORT = "training.output_dir", "report.html"


def read_story(name_or_path: str, overrides: Sequence[str] = (), trust_remote_code: bool = False) -> Study:
    """The story of a file or of a shipped name, each of its recipes composed and checked.

    overrides: STEP.section.key=value wins over the recipe of a step, section.key=value over those of all;
        training.output_dir is the folder of the story.

    Raises UserError: no steps, an unknown step or key, or as `recipe_from_dict`, with the name of the step.
    """
    data, stem = read_yaml_file(name_or_path, "stories", "story")
    where, sections = f"story {stem}", [part.name for part in parts_of_recipe()]
    refuse_unknown(data, ("description", "output_dir", "steps"), where)
    recipes = as_mapping(data.get("steps"), f"{where}: steps")
    wrong = next((name for name in recipes if name in sections or not re.fullmatch(r"\w[\w-]*", str(name))), None)
    if not recipes or wrong is not None:
        raise UserError(f"{where}: steps.{wrong or ''} is no name of a step; give each recipe one, such as steps.first")
    folder, overrides_of = Path(data.get("output_dir") or f"runs/{stem}").expanduser(), {name: [] for name in recipes}
    for text in overrides:
        first, _, rest = text.partition(".")
        if text.startswith(f"{FOLDER_SETTING}="):
            folder = Path(text.partition("=")[2]).expanduser()
        elif first not in (*overrides_of, *sections):
            near = did_you_mean(first, [*overrides_of, *sections])
            raise UserError(f"{text}: {first!r} is neither a step of {where} nor a section of recipes{near}")
        for name in overrides_of if first in sections else ():
            overrides_of[name].append(text)
        if first in overrides_of:
            overrides_of[first].append(rest)
    steps: list[Member] = []
    for name, recipe in recipes.items():
        try:
            recipe = {**as_mapping(recipe, "recipe"), "name": f"{stem}-{name}"}
            before = steps[-1] if steps else None
            steps.append(_step(name, recipe, overrides_of[name], folder / name, before, trust_remote_code))
        except UserError as error:
            raise UserError(f"step {name}: {error}") from error
    return Study(
        folder, steps, noun="step", page=REPORT, report=lambda _: print(f"report of all steps: {folder / REPORT}")
    )


def _step(name: str, given: dict, overrides: list[str], folder: Path, before: Member | None, trusted: bool) -> Member:
    """A step that begins from the model of the previous step; `planned` has that model's architecture and tokenizer."""
    recipe = planned = given
    if before is not None:
        planned_before, model = before.planned.to_dict(), given.get("model") or {}
        recipe = given | {"model": {"name_or_path": str(before.folder), **model}}
        planned = given | {"model": planned_before["model"] | model, "tokenizer": planned_before["tokenizer"]}
    places = (f"{FOLDER_SETTING}={json.dumps(str(place))}" for place in (folder, f"{folder}-planned"))
    load = partial(recipe_from_dict, trust_remote_code=trusted)
    recipe, planned = (load(one, [*overrides, place]) for one, place in zip((recipe, planned), places))
    return Member(name, Path(recipe.training.output_dir), recipe=recipe, planned=planned, after=before)
