"""`anyformer prepare`: the data of a recipe made ready in the cache."""

import sys
import time

from .common_arguments import add_recipe, add_trust, recipe_of
from .output import quoted, say_loading, say_next


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Fill the cache (data.cache_dir) with what training reads: the tokenizer and the tokens. The same\n"
        "command goes on after an interruption.",
        epilog="examples:\n  anyformer prepare my_recipe.yaml data.num_proc=16",
    )
    add_recipe(parser)
    add_trust(parser)


def run(args) -> int:
    recipe = recipe_of(args)
    say_loading()
    from ..objectives.prepare import cache_of, describe_data, prepare_data

    begun = time.monotonic()
    for split, text in describe_data(prepare_data(recipe, progress=sys.stdout.isatty())):
        print(f"{split}: {text}")
    print(f"ready in {cache_of(recipe)} after {time.monotonic() - begun:.0f} s")
    say_next(f"anyformer train {quoted(args.recipe)}")
    return 0
