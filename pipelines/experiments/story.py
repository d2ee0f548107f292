"""Training of a story: its steps in order, without those that are finished, and one page of all steps."""

import os
from pathlib import Path

from ..adapters import is_same_model, weights_identity
from ..reporting.comparison import compare_runs
from ..reporting.report import REPORT
from ..reporting.run_log import RUN_FILE, read_run
from ..storage.checkpoints import set_aside
from ..training.checkpoints.run_folder import stored_run
from ..training.run import train
from .story_file import Step, Story


def train_story(story: Story, *, dry_run: bool = False) -> int:
    """Train or resume the steps; returns 0, or the exit code of the step that was stopped.

    A finished step is left as it is. dry_run: each step is tried with the architecture that it would begin from.

    Raises:
        UserError: as `train`.
    """
    is_main = os.environ.get("RANK", "0") == "0"
    for number, step in enumerate(story.steps, 1):
        if is_main and not dry_run:
            set_stale_aside(step)
        is_done = not dry_run and is_finished(step)
        if is_main:
            state = ": finished before" if is_done else ""
            print(f"step {number} of {len(story.steps)}: {step.name}, in {step.folder}{state}", flush=True)
        code = train(step.planned if dry_run else step.recipe, dry_run=dry_run, quiet=is_done)
        if code:
            return code
        if is_main and not dry_run:
            compare_runs([one.folder for one in story.steps[:number]], story.folder / REPORT)
    if is_main and not dry_run:
        print(f"report of all steps: {story.folder / REPORT}")
    return 0


def set_stale_aside(step: Step) -> None:
    """Rename the folder of a step that began from other weights than those that the step before it has now."""
    base, stored = step.recipe.model.name_or_path, stored_run(step.folder)
    if stored is None or base is None or not Path(base).expanduser().is_dir():
        return
    if is_same_model(stored["data"].get("base_weights"), weights_identity(base, alone=True)):
        return
    print(
        f"step {step.name} began from other weights than {base} has now and is made again; what was made is in "
        f"{set_aside(step.folder)}"
    )


def is_finished(step: Step) -> bool:
    """Whether the step's folder holds a finished run; `train` checks whether that is this step's."""
    return (step.folder / RUN_FILE).is_file() and read_run(step.folder).run.get("status") == "finished"
