"""One recipe with several seeds: a study of ordinary runs, and what their metrics have in common."""

import os
from pathlib import Path

from ..errors import UserError
from ..recipes.introspection import check_beside
from ..recipes.schema import Recipe
from ..reporting.comparison import compared
from ..reporting.console import print_table
from ..storage.atomic import write_atomically
from ..storage.json_text import json_text
from ..words import short_metric, with_deviation
from .study import Member, Study

FILE = "seeds.json"


def seed_study(recipe: Recipe, seeds: list[int]) -> Study:
    """The runs of a recipe with some seeds, each as `training.seed=N training.output_dir=.../seed-N` makes it.

    Raises UserError for runs that would be published over each other, or share DeepSpeed's engine.
    """
    check_beside("publish", recipe.publish, [("repo_id=", True, "does not go with --seeds, whose runs are many")])
    by_launcher = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    if by_launcher or recipe.training.extra.get("deepspeed") is not None:
        raise UserError("--seeds does not go with DeepSpeed, which trains once in a process; start each training.seed")
    members = []
    for seed in seeds:
        folder = Path(recipe.training.output_dir) / f"seed-{seed}"
        of_seed = recipe.with_(training={"seed": seed, "output_dir": str(folder)})
        members.append(Member(folder.name, folder, values={"seed": seed}, recipe=of_seed))
    return Study(Path(recipe.training.output_dir), members, report=report_seeds)


def report_seeds(study: Study) -> None:
    """Print a table of the metrics of finished runs, and write output_dir/seeds.json."""
    members, name = study.members, study.members[0].recipe.name
    metrics = compared({member.name: member.metrics for member in members})
    result = {"recipe": name, "seeds": [member.values["seed"] for member in members], "metrics": metrics}
    path = study.folder / FILE
    write_atomically(path, json_text(result) + "\n")
    rows = []
    for metric, row in metrics.items():
        values = map(short_metric, row["values"].values())
        rows.append([metric.replace("_", " "), *values, with_deviation(row["mean"], row["deviation"])])
    columns = ["metric", *(member.name for member in members), "mean ± deviation"]
    print_table(f"{name} with {len(members)} seeds", columns, rows)
    print(f"written to {path}")
