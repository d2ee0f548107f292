"""From a recipe's data section to rows of images, for the task and the objectives that learn from them."""

from transformers import AutoConfig

from ..data.examples import Examples
from ..data.image_files import open_images
from ..errors import UserError
from ..images.processors import image_gpt_processor, image_shape, load_image_processor, recipe_image_processor
from ..recipes.checks import config_namespace
from ..recipes.image_checks import job_of
from ..recipes.schema import Recipe
from .image_classification import ImageClassification, columns_of
from .masked_image import MaskedImageObjective
from .pixels import PixelsObjective


def open_splits(recipe: Recipe) -> dict[str, Examples]:
    """The examples of each split, with the columns that the recipe's task or objective reads."""
    if recipe.task is not None:
        return open_images(recipe.data, columns_of(recipe.task))
    section = recipe.objective
    labels = {"label_field": section.label_field} if section.label_field else {}
    return open_images(recipe.data, {"image_field": section.image_field} | labels)


def make_job(recipe: Recipe, splits: dict[str, Examples], cache):
    """The recipe's task or objective, which makes rows of the splits; the training split's come first."""
    _, name = job_of(recipe)
    seed = recipe.training.seed
    if name == "pixels":
        side = recipe.objective.image_size
        if recipe.model.name_or_path is not None:
            processor = load_image_processor(recipe.model.name_or_path)
            side = processor.size["height"]
        else:
            processor = image_gpt_processor(side)
        return PixelsObjective(recipe.objective, processor, (3, side, side), seed)
    shape = image_shape(recipe)
    processor = recipe_image_processor(recipe, shape)
    if name == "masked_image":
        config = config_namespace(recipe) or AutoConfig.from_pretrained(recipe.model.name_or_path)
        if not config.model_type.startswith("anyformer_"):
            raise UserError(
                f"objective.name=masked_image trains models of family vit, and model.name_or_path="
                f"{recipe.model.name_or_path!r} is a {config.model_type}; convert it first, with anyformer convert"
            )
        return MaskedImageObjective(recipe.objective, processor, shape, config.patch_size, seed)
    metrics = recipe.evaluation.metrics
    return ImageClassification(recipe.task, processor, shape, splits["train"], cache, metrics, seed)


def image_rows(recipe: Recipe, cache):
    """(task or objective, rows of each split)."""
    splits = open_splits(recipe)
    job = make_job(recipe, splits, cache)
    return job, {split: job.rows(examples, cache) for split, examples in splits.items()}
