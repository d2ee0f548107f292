"""`anyformer prepare`: the data of a recipe made ready in the cache, whole or one machine's share of it."""

import re
import time
from functools import partial

from ..errors import UserError
from ..recipes.global_batch import rows_per_step
from ..words import counted
from .output import quoted, say_loading, say_next
from .parser import add_recipe, recipe_of


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Fill the cache (data.cache_dir) with what training reads: the tokenizer and the tokens. The same\n"
        "command goes on after an interruption. With --shard, one of many machines does its part of the work;\n"
        "the training finds the parts of all, and makes what is missing.",
        epilog="examples:\n"
        "  anyformer prepare my_recipe.yaml\n"
        "  anyformer prepare my_recipe.yaml --shard 3/64\n"
        "  sbatch --array=1-64 scripts/slurm/prepare.sbatch my_recipe.yaml",
    )
    add_recipe(parser)
    parser.add_argument("--shard", metavar="I/N", help="make only share I, from 1, of N: one for each machine")


def run(args) -> None:
    share = None if args.shard is None else share_of(args.shard)
    recipe = recipe_of(args)
    say_loading()
    from ..data.account_words import came_in
    from ..objectives.prepare import cache_of, describe_data, prepare_data, prepare_share
    from ..training.log.summary import sources_of_run

    begun = time.monotonic()
    if share is None:
        data = prepare_data(recipe, for_training=True)
        train, per_step = data.rows["train"], rows_per_step(recipe.training, 1)
        tokens_after = partial(train.tokens_after, per_step=per_step)
        sources = [] if recipe.stages else sources_of_run(train, per_step, recipe, tokens_after)
        for split, text in [*describe_data(data), *came_in(data.rows), *sources]:
            print(f"{split}: {text}")
    else:
        made = prepare_share(recipe, *share)
        print(f"share {args.shard}: " + ", ".join(f"{counted(n, 'shard')} of {split}" for split, n in made.items()))
    print(f"ready in {cache_of(recipe)} after {time.monotonic() - begun:.0f} s")
    say_next(f"anyformer train {quoted(args.recipe)}" + ("    # when every share is ready" if share else ""))


def share_of(text: str) -> tuple[int, int]:
    """(3, 64) of "3/64". Raises UserError for anything else."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, total = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= total:
        raise UserError(f"--shard {text!r} is not I/N with I from 1 to N, such as 3/64")
    return number, total
