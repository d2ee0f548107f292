"""One recipe trained with several seeds: ordinary runs in one folder each, compared at the end."""

import json
import os
from pathlib import Path

from ..errors import UserError
from ..recipes.schema import Recipe
from ..reporting.comparison import compared
from ..reporting.console import print_table
from ..storage.atomic import write_atomically
from ..storage.json_text import json_text
from ..training.run import train
from ..words import short_metric, with_deviation

FILE = "seeds.json"


def recipe_with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of the run with a seed, in output_dir/seed-N."""
    folder = Path(recipe.training.output_dir) / f"seed-{seed}"
    return recipe.with_(training={"seed": seed, "output_dir": str(folder)})


def train_seeds(recipe: Recipe, seeds: list[int], *, dry_run: bool = False) -> int:
    """Train the recipe with each seed, or resume; then print a table and write output_dir/seeds.json.

    Each run is the one that `training.seed=N training.output_dir=.../seed-N` makes; a finished one is not trained
    again. Returns the exit code of the first run that was stopped, else 0. dry_run: tries the first seed.

    Raises:
        UserError: runs that would be published over each other or share DeepSpeed's engine, or as `train`.
    """
    if recipe.publish.repo_id is not None:
        raise UserError(f"publish.repo_id={recipe.publish.repo_id} does not go with --seeds, whose runs are many")
    by_launcher = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    if by_launcher or recipe.training.extra.get("deepspeed") is not None:
        raise UserError("--seeds does not go with DeepSpeed, which trains once in a process; start each training.seed")
    metrics_of_runs = {}
    for seed in seeds:
        seeded = recipe_with_seed(recipe, seed)
        code = train(seeded, dry_run=dry_run)
        if code or dry_run:
            return code
        run = Path(seeded.training.output_dir)
        if int(os.environ.get("RANK", "0")) == 0:  # the other ranks end before run.json is written
            metrics_of_runs[run.name] = json.loads((run / "run.json").read_text(encoding="utf-8"))["metrics"]
    if metrics_of_runs:
        result = {"recipe": recipe.name, "seeds": seeds, "metrics": compared(metrics_of_runs)}
        path = Path(recipe.training.output_dir) / FILE
        write_atomically(path, json_text(result) + "\n")
        rows = []
        for name, row in result["metrics"].items():
            values = map(short_metric, row["values"].values())
            rows.append([name.replace("_", " "), *values, with_deviation(row["mean"], row["deviation"])])
        print_table(f"{recipe.name} with {len(seeds)} seeds", ["metric", *metrics_of_runs, "mean ± deviation"], rows)
        print(f"written to {path}")
    return 0
