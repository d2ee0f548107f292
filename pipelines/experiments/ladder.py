"""A ladder: a study of one recipe in several widths, each trained for several numbers of steps."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

from ..errors import UserError
from ..recipes.base_width import head_size, in_width
from ..recipes.schema import Recipe
from ..words import counted
from .study import Member
from .sweep_file import setting

FEWEST = 6  # runs that a law is fitted to, at least: one more than it has parameters
OF_IT = "a ladder is made of it"
PARTS_OF_WIDTH, PARTS_OF_STEPS = (1 / 4, 3 / 8, 1 / 2, 3 / 4, 1), (1 / 4, 1 / 2, 1)


def widths_of(recipe: Recipe, given: list[int] | None) -> list[int]:
    """The hidden sizes of a ladder, ascending; `in_width` checks each one. Raises UserError for fewer than three."""
    head = head_size(recipe.model.fields, OF_IT)
    if given is None:
        hidden_size = recipe.model.fields["hidden_size"]
        given = sorted({max(1, round(hidden_size * part / head)) * head for part in PARTS_OF_WIDTH})
    if len(set(given)) < 3:
        raise UserError(f"--widths {','.join(map(str, given))}: two are fitted, a larger one tried; give three or more")
    return sorted(set(given))


def steps_of(recipe: Recipe, given: list[int] | None) -> list[int]:
    """The numbers of steps of a ladder, ascending. Raises UserError for fewer than two, or if max_steps is missing."""
    if given is None and recipe.training.max_steps <= 0:
        raise UserError("training.max_steps is not set; give the lengths of the runs by --steps 250,500,1000")
    if given is None:
        given = [max(1, round(recipe.training.max_steps * part)) for part in PARTS_OF_STEPS]
    if len(set(given)) < 2 or min(given) < 1:
        raise UserError(f"--steps {','.join(map(str, given))}: a law needs runs of two lengths or more")
    return sorted(set(given))


def ladder(recipe: Recipe, widths: list[int], steps: list[int], load: Callable[[list[str]], Recipe]) -> list[Member]:
    """The runs of a recipe in each width for each number of steps, the cheapest first.

    Sizes follow the width (base_width.py). Layers, rows, learning rate and schedule are the recipe's; with
    training.transfer the rate is that of the base width, from which each width derives its own. load: settings -> the
    recipe with them; raises UserError for those that a width contradicts.
    """
    rungs = []
    for width, count in sorted(product(widths, steps), key=lambda rung: (rung[0] * rung[1], rung[0])):
        folder = Path(recipe.training.output_dir) / f"width-{width}-steps-{count}"
        sizes = in_width(recipe.model.fields, width, "--widths", OF_IT)
        settings = [f"model.{name}={value}" for name, value in sizes.items()]
        settings += [
            f"training.max_steps={count}",
            "training.max_tokens=null",
            setting("training.output_dir", str(folder)),
        ]
        name, values = f"width {width}, {counted(count, 'step')}", {"width": width, "steps": count}
        rungs.append(Member(name, folder, settings, values, load(settings)))
    return rungs
