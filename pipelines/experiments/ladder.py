"""A ladder of recipes: one recipe in several widths, each trained for several numbers of steps."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..recipes.schema import Recipe

FEWEST = 6  # runs that a law is fitted to: one more than it has numbers
PARTS_OF_WIDTH, PARTS_OF_STEPS = (1 / 4, 3 / 8, 1 / 2, 3 / 4, 1), (1 / 4, 1 / 2, 1)


@dataclass
class Rung:
    """One run of a ladder: its width, its steps, the settings that make it of the recipe, and its folder."""

    width: int
    steps: int
    settings: list[str]
    folder: Path


def widths_of(recipe: Recipe, given: list[int] | None) -> list[int]:
    """The hidden sizes of a ladder, ascending. Raises UserError for fewer than three, or for no whole heads."""
    head = head_size(recipe)
    if given is None:
        own = recipe.model.fields["hidden_size"]
        given = sorted({max(1, round(own * part / head)) * head for part in PARTS_OF_WIDTH})
    wrong = [width for width in given if width % head or width < head]
    if wrong:
        raise UserError(f"--widths: {wrong[0]} is no multiple of {head}, the size of a head of this recipe")
    if len(set(given)) < 3:
        raise UserError(
            f"--widths {','.join(map(str, given))}: a law is fitted to two sizes or more, and tried on a larger one; "
            f"give at least three"
        )
    return sorted(set(given))


def steps_of(recipe: Recipe, given: list[int] | None) -> list[int]:
    """The numbers of steps of a ladder, ascending. Raises UserError for fewer than two, or none to take them from."""
    if given is None and recipe.training.max_steps <= 0:
        raise UserError("training.max_steps is not set; give the lengths of the runs by --steps 250,500,1000")
    if given is None:
        given = [max(1, round(recipe.training.max_steps * part)) for part in PARTS_OF_STEPS]
    if len(set(given)) < 2 or min(given) < 1:
        raise UserError(f"--steps {','.join(map(str, given))}: a law needs runs of two lengths or more")
    return sorted(set(given))


def head_size(recipe: Recipe) -> int:
    """Channels of an attention head of the recipe. Raises UserError where it does not say its width and heads."""
    fields = recipe.model.fields
    for name in ("hidden_size", "num_attention_heads"):
        if name not in fields:
            raise UserError(f"model.{name} is not set, and a ladder is made of it; set it, or name a preset that does")
    return fields["hidden_size"] // fields["num_attention_heads"]


def ladder(recipe: Recipe, widths: list[int], steps: list[int]) -> list[Rung]:
    """The runs of a recipe in each width for each number of steps, the cheapest first.

    Heads keep their size, so that a narrower model has fewer; what else is a number of channels keeps its share of the
    width. Layers, rows, learning rate and schedule are the recipe's.
    """
    fields, head = recipe.model.fields, head_size(recipe)
    own, heads, rungs = fields["hidden_size"], fields["num_attention_heads"], []
    for width in widths:
        fewer = {"hidden_size": width, "num_attention_heads": width // head}
        groups = fields.get("num_key_value_heads")
        if groups is not None:
            together = heads // groups
            fewer["num_key_value_heads"] = max(1, width // head // together)
            if width // head % fewer["num_key_value_heads"]:
                raise UserError(
                    f"--widths: {width} has {width // head} heads, which {groups} key and value heads for {heads} do "
                    f"not divide; choose multiples of {head * together}"
                )
        for name in ("intermediate_size", "embedding_size", "moe_intermediate_size"):
            if fields.get(name) is not None:
                fewer[name] = max(8, round(fields[name] * width / own / 8) * 8)
        for count in steps:
            folder = Path(recipe.training.output_dir) / f"width-{width}-steps-{count}"
            settings = [f"model.{name}={value}" for name, value in fewer.items()]
            settings += [f"training.max_steps={count}", f"training.output_dir={folder}"]
            rungs.append(Rung(width, count, settings, folder))
    return sorted(rungs, key=lambda rung: (rung.width * rung.steps, rung.width))
