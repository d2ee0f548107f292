"""`anyformer train RECIPE --seeds ...`: which seeds are meant, before anything heavy is imported."""

from collections.abc import Callable

from ..errors import UserError
from ..recipes.schema import Recipe


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


def train_with_seeds(recipe: Recipe, text: str, dry_run: bool, say_loading: Callable[[], None]) -> int:
    """The verb's exit code."""
    seeds = seeds_of(text, recipe.training.seed)
    say_loading()
    from ..experiments.seed_runs import train_seeds

    return train_seeds(recipe, seeds, dry_run=dry_run)
