"""Trains and plans a story: its steps in order, those that are finished left as they are, one page of all."""

import os
import shutil
import sys

from ..accounting.devices import Devices
from ..accounting.plan import Plan, plan_run
from ..errors import UserError
from ..objectives.prepare import cache_of
from ..plugins import objective_of
from ..recipes.compose import resume_difference
from ..recipes.recipe_files import read_yaml_file
from ..reporting.run_log import RUN_FILE, read_run
from ..reporting.story_page import TOKENIZER, write_story_page
from ..storage.atomic import make_sibling_folder, write_atomically
from ..training.run import train
from ..words import counted
from .story_file import Step, Story

SECTIONS_OF_TOKENIZER = ("tokenizer", "data")


def train_story(story: Story, *, dry_run: bool = False) -> int:
    """Train the steps, or go on; returns 0, or the exit code of the step that was stopped.

    A finished step is left as it is. dry_run: each step is tried with the architecture that it would begin from.

    Raises:
        UserError: a folder that holds another step, or as `train`.
    """
    is_main = os.environ.get("RANK", "0") == "0"
    for number, step in enumerate(story.steps, 1):
        is_done = not dry_run and is_finished(step)
        if is_main:
            state = ": finished before" if is_done else ""
            print(f"step {number} of {len(story.steps)}: {step.name}, in {step.folder}{state}", flush=True)
        if not step.makes_tokenizer:
            code = train(step.planned if dry_run else step.recipe, dry_run=dry_run, quiet=is_done)
            if code:
                return code
        elif is_main and not dry_run:
            make_tokenizer(step)
        if is_main and not dry_run:
            page = write_story_page(story.folder, story.description, {one.name: one.folder for one in story.steps})
    if is_main and not dry_run:
        print(f"report of all steps: {page}")
    return 0


def is_finished(step: Step) -> bool:
    """Whether a step has been made; `train` and `make_tokenizer` find out whether it was this one."""
    if step.makes_tokenizer:
        return (step.folder / TOKENIZER).is_file()
    return (step.folder / RUN_FILE).is_file() and read_run(step.folder).run.get("status") == "finished"


def make_tokenizer(step: Step) -> None:
    """Train the tokenizer of a step into its folder, complete or absent.

    Raises UserError for a folder that holds another one, and what the data raise.
    """
    recipe, folder = step.recipe, step.folder
    asked = {name: section for name, section in recipe.to_dict().items() if name in SECTIONS_OF_TOKENIZER}
    if is_finished(step):
        before, _ = read_yaml_file(str(folder / "recipe.yaml"), "recipes", "recipe")
        difference = resume_difference({name: before.get(name) or {} for name in asked}, asked)
        if difference is not None:
            raise UserError(f"{folder} holds another tokenizer ({difference}); set training.output_dir to another one")
        return
    objective = objective_of(recipe)
    objective.prepare(objective.open(), cache_of(recipe), sys.stdout.isatty())
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = make_sibling_folder(folder)
    try:
        objective.tokenizer.save_pretrained(staged)
        write_atomically(staged / "recipe.yaml", recipe.to_yaml())
        os.replace(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    print(f"a vocabulary of {counted(len(objective.tokenizer), 'token')}, saved in {folder}")


def plan_story(story: Story, devices: Devices, **how) -> list[tuple[Step, Plan]]:
    """The plans of the steps that train a model; how: as `plan_run` takes it."""
    return [(step, plan_run(step.planned, devices, **how)) for step in story.steps if not step.makes_tokenizer]
