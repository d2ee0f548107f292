"""What a recipe that trains on images may say. Standard library only: recipes are checked with it."""

from . import source_fields
from .errors import UserError
from .recipe_types import show
from .schema import Recipe, TokenizerSection

IMAGE_TASKS = ("image_classification",)
FAMILIES = {"image_classification": "vit"}


def sees_images(recipe: Recipe) -> bool:
    """Whether the recipe's model learns from images instead of text."""
    return recipe.task is not None and recipe.task.name in IMAGE_TASKS


def job_of(recipe: Recipe) -> tuple[str, str]:
    """(section, name) of what is learned, such as ("task", "image_classification")."""
    return ("task", recipe.task.name) if recipe.task is not None else ("objective", recipe.objective.name)


def check_no_tokenizer(recipe: Recipe) -> None:
    """Raise UserError for a tokenizer section: there is no text. A checkpoint's name is filled in by itself."""
    section, name = job_of(recipe)
    for field, default in vars(TokenizerSection()).items():
        value = getattr(recipe.tokenizer, field)
        if value != default and not (field == "name_or_path" and value == recipe.model.name_or_path):
            raise UserError(f"tokenizer.{field} has no effect with {section}.name={name}; images have no text")


def check_images(recipe: Recipe) -> None:
    """Raise UserError for settings of images that cannot be run."""
    where, name = job_of(recipe)
    section, family = getattr(recipe, where), recipe.model.family
    if family not in (None, FAMILIES[name]):
        raise UserError(f"model.family={family} does not go with {where}.name={name}; it takes {FAMILIES[name]}")
    for field in ("image_mean", "image_std"):
        values = getattr(section, field)
        if values is None:
            continue
        if recipe.model.name_or_path is not None:
            raise UserError(f"{where}.{field} cannot be set with model.name_or_path; the checkpoint has its own")
        channels = recipe.model.fields.get("num_channels", source_fields.family_fields(family)["num_channels"].default)
        if len(values) != channels:
            raise UserError(f"{where}.{field}={show(values)} must be {channels} numbers, as model.num_channels says")
        if field == "image_std" and min(values) <= 0:
            raise UserError(f"{where}.image_std={show(values)} must be above 0")
    if getattr(section, "horizontal_flip", 0) > 1:
        raise UserError(f"{where}.horizontal_flip={show(section.horizontal_flip)} is a probability; at most 1")
