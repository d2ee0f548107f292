"""Preparation by datatrove's executors, on this machine or on a cluster, as docs/data.md shows (anyformer[datatrove]).

Each task makes one share of the shards, as `anyformer prepare --shard` does. The executor restarts failed tasks
and skips finished ones; within a task, finished shards are not made again.
"""

from collections.abc import Iterator, Sequence

from ..errors import UserError
from ..recipes.compose import load_recipe

try:
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise UserError("PrepareShare needs datatrove; install anyformer[datatrove]") from error


class PrepareShare(PipelineStep):
    """Makes a task's share of the shards of a recipe's data. recipe, overrides: as for `anyformer prepare`."""

    type, name = "anyformer", "prepare"

    def __init__(self, recipe: str, overrides: Sequence[str] = ()):
        super().__init__()
        self.recipe, self.overrides = str(recipe), list(overrides)

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> Iterator:
        from .prepare import prepare_share

        with self.track_time():
            made = prepare_share(load_recipe(self.recipe, self.overrides), rank + 1, world_size)
        for split, number in made.items():
            self.stat_update(f"shards of {split}", value=number)
        yield from data or ()
