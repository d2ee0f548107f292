"""The recipe for a name that `anyformer plan` gets: a recipe, or one made for a model preset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..plugins import OBJECTIVES
from .compose import load_preset, load_recipe, recipe_from_dict
from .introspection import family_row
from .recipe_files import shipped
from .schema import Recipe

LONGEST_ROW, USUAL_ROW = 4096, 512  # tokens a row: at most, and for a preset without max_position_embeddings


def planned_recipe(
    name: str, overrides: Sequence[str] = (), notes: list[str] | None = None, **options: Any
) -> tuple[Recipe, bool]:
    """Return (recipe, whether it was made for a preset) for the name of a recipe or preset.

    overrides, notes, options: as load_recipe's. Raises UserError if there is neither, and the errors of `load_recipe`.
    """
    presets = shipped("models")
    recipes = shipped("recipes")
    is_path = Path(name).suffix in (".yaml", ".yml") or Path(name).name != name
    if is_path or name in recipes or Path(name).is_file():
        return load_recipe(name, overrides, notes, **options), False
    if name not in presets:
        near = did_you_mean(name, [*recipes, *presets])
        raise UserError(f"{name!r} is neither a recipe, nor a file, nor a preset{near}")
    family, fields = load_preset(name)
    # A preset is only a model: plan the family's usual objective, rows of the model's full length, one per device.
    learned = OBJECTIVES[family_row(family).objective]
    run = {learned.section: {"name": learned.name}}
    tokenizer = {}
    if "objective" in run:
        positions = fields.get("max_position_embeddings") or USUAL_ROW
        run = {"objective": run["objective"] | {"sequence_length": min(positions, LONGEST_ROW)}}
        tokenizer = {"vocab_size": fields["vocab_size"]} if "vocab_size" in fields else {"type": "char"}
    vocabulary = {key: fields[key] for key in ("vocab_size", "output_vocab_size") if key in fields}
    data = {
        "name": name,
        "model": {"preset": name, **vocabulary},
        "data": {"source": "stdlib"} if "objective" in run else {"files": "images.parquet"},
        "tokenizer": tokenizer,
        "training": {"output_dir": f"runs/{name}", "per_device_train_batch_size": 1},
        **run,
    }
    return recipe_from_dict(data, overrides, **options), True
