"""Arguments that several verbs have, and the recipe that some of them name."""

import argparse

from ..backends import ATTENTION, AUTO, EXPERTS
from ..errors import UserError
from ..recipes.compose import load_recipe
from .output import say


def add_recipe(parser, metavar: str = "RECIPE", help: str = "a YAML file, or the name of a shipped recipe") -> None:
    """Add a recipe and the settings that win over its own."""
    parser.add_argument("recipe", metavar=metavar, help=help)
    add_overrides(parser)


def add_overrides(parser) -> None:
    """Add settings that win over a recipe's."""
    parser.add_argument(
        "overrides", metavar="section.key=value", nargs="*", default=[], help="settings that win over the recipe's"
    )


def add_trust(parser) -> None:
    """Add --trust-remote-code."""
    parser.add_argument("--trust-remote-code", action="store_true", help="run model code that comes with the model")


def add_backends(parser, what: str) -> None:
    """Add the two backends of a command without a recipe; `what`: what they compute there."""
    for part, names in (("attn", f"{', '.join(ATTENTION)} or a kernel of the Hub"), ("experts", ", ".join(EXPERTS))):
        parser.add_argument(f"--{part}-implementation", metavar="NAME", default=AUTO, help=f"{what}: {names}")


def add_json(parser) -> None:
    """Add the option `--json` to a verb."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON value, and nothing else, on the standard output"
    )


def at_least(low: int):
    """The type of whole numbers from `low` on."""

    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} must be at least {low}")
        return value

    whole_number.__name__ = "whole number"  # argparse's errors name it
    return whole_number


def seeds_of(text: str, first: int) -> list[int]:
    """So many seeds from `first` on, or those of a list. Raises UserError for what is neither."""
    try:
        given = [int(word) for word in text.split(",")]
    except ValueError:
        given = []
    seeds = [*range(first, first + given[0])] if len(given) == 1 else given
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds {text} is no number of seeds from 1 on, such as 3, nor a list of them, such as 1,2,3")
    return seeds


def recipe_of(args):
    """The recipe of a command; what its overrides replace is said on the error stream, so that pipes stay clean."""
    notes: list[str] = []
    recipe = load_recipe(args.recipe, args.overrides, notes)
    recipe.trust_remote_code = args.trust_remote_code
    if getattr(args, "launch", None) is None:  # else the first process says it
        say(notes)
    return recipe
