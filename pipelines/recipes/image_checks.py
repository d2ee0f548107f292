"""What a recipe that trains on images may say. Standard library only: recipes are checked with it."""

from dataclasses import fields

from ..errors import UserError
from . import introspection
from .schema import DataSection, ObjectiveSection, Recipe, TokenizerSection
from .types import show

FAMILIES = {"image_classification": ("vit",), "masked_image": ("vit",), "pixels": ("decoder", "moe")}
# Objective -> what can be measured beside the loss; of text it is perplexities.
METRICS_OF_IMAGES = {"pixels": ("bits_per_pixel", "bits_per_dimension", "linear_probe"), "masked_image": ()}
# Objective -> fields of the section that it reads, beside its name.
FIELDS_OF = {
    "pixels": ("image_field", "label_field", "image_size", "clusters", "probe_layer"),
    "masked_image": ("image_field", "mask_ratio", "image_mean", "image_std"),
}
IMAGE_FIELDS = tuple(dict.fromkeys(name for names in FIELDS_OF.values() for name in names))


def job_of(recipe: Recipe) -> tuple[str, str]:
    """(section, name) of what is learned, such as ("task", "image_classification")."""
    return ("task", recipe.task.name) if recipe.task is not None else ("objective", recipe.objective.name)


def sees_images(recipe: Recipe) -> bool:
    """Whether the recipe's model learns from images instead of text."""
    return job_of(recipe)[1] in FAMILIES


def check_no_tokenizer(recipe: Recipe) -> None:
    """Raise UserError for a tokenizer section: there is no text. A checkpoint's name is filled in by itself."""
    section, name = job_of(recipe)
    for field, default in vars(TokenizerSection()).items():
        value = getattr(recipe.tokenizer, field)
        if value != default and not (field == "name_or_path" and value == recipe.model.name_or_path):
            raise UserError(f"tokenizer.{field} has no effect with {section}.name={name}; images have no text")


def check_examples(data: DataSection, section: str) -> None:
    """Raise UserError for settings of the data that are of plain text alone."""
    what = "labelled examples" if section == "task" else "images"
    learner = "a task" if section == "task" else "an objective of images"
    for name, default in (("source", None), ("mixture", []), ("streaming", False)):
        if getattr(data, name) != default:
            raise UserError(f"data.{name} does not go with {learner}; give {what} by data.files or data.dataset")
    for name, default in (("text_field", "text"), ("document", "file")):
        if getattr(data, name) != default:
            raise UserError(f"data.{name} has no effect with {learner}; the {section} section names the columns")


def check_images(recipe: Recipe) -> None:
    """Raise UserError for settings of images that cannot be run."""
    where, name = job_of(recipe)
    family = recipe.model.family
    if family is not None and family not in FAMILIES[name]:
        raise UserError(
            f"model.family={family} does not go with {where}.name={name}; it takes {' or '.join(FAMILIES[name])}"
        )
    if recipe.task is None:
        _check_objective(recipe)
    elif recipe.task.horizontal_flip > 1:
        raise UserError(f"task.horizontal_flip={show(recipe.task.horizontal_flip)} is a probability; at most 1")
    _check_normalisation(recipe)


def _check_objective(recipe: Recipe) -> None:
    section, evaluation = recipe.objective, recipe.evaluation
    check_examples(recipe.data, "objective")
    for field in fields(ObjectiveSection):
        default = False if field.name == "add_bos" else field.default
        if field.name == "name" or field.name in FIELDS_OF[section.name] or getattr(section, field.name) == default:
            continue
        raise UserError(f"objective.{field.name} has no effect with objective.name={section.name}; remove it")
    if evaluation.sample_prompts:
        raise UserError(f"evaluation.sample_prompts has no effect with objective.name={section.name}; remove it")
    if section.name != "pixels":
        return
    pixels, most = section.image_size**2, recipe.model.fields.get("max_position_embeddings")
    if most is not None and most < pixels:
        raise UserError(
            f"model.max_position_embeddings={most} must be at least {pixels}, as objective.image_size="
            f"{section.image_size} makes {pixels} pixels; remove it"
        )
    if "linear_probe" in evaluation.metrics and section.label_field is None:
        raise UserError("evaluation.metrics: linear_probe needs objective.label_field, the column of the classes")
    layers = recipe.model.fields.get("num_hidden_layers")
    if None not in (section.probe_layer, layers) and section.probe_layer > layers:
        raise UserError(f"objective.probe_layer={section.probe_layer} must be at most {layers}, the number of layers")


def _check_normalisation(recipe: Recipe) -> None:
    where, _ = job_of(recipe)
    for field in ("image_mean", "image_std"):
        values = getattr(getattr(recipe, where), field)
        if values is None:
            continue
        if recipe.model.name_or_path is not None:
            raise UserError(f"{where}.{field} cannot be set with model.name_or_path; the checkpoint has its own")
        default = introspection.family_fields(recipe.model.family)["num_channels"].default
        channels = recipe.model.fields.get("num_channels", default)
        if len(values) != channels:
            raise UserError(f"{where}.{field}={show(values)} must be {channels} numbers, as model.num_channels says")
        if field == "image_std" and min(values) <= 0:
            raise UserError(f"{where}.image_std={show(values)} must be above 0")
