"""What a finished model of pixels is asked beside its loss: a linear probe, and images completed from their halves."""

from pathlib import Path

from ..recipes.schema import Recipe
from .linear_probe import linear_probe
from .pixel_completion import write_completions

PICTURE = "completions.png"


def probe_metrics(model, recipe: Recipe, train, rows) -> dict[str, float]:
    """{"linear_probe": accuracy on `rows`} where the recipe asks for it, else nothing."""
    if "linear_probe" not in recipe.evaluation.metrics:
        return {}
    batch_size, seed = recipe.training.per_device_train_batch_size, recipe.training.seed
    layer = recipe.objective.probe_layer
    return {"linear_probe": linear_probe(model, train, rows, layer=layer, batch_size=batch_size, seed=seed)}


def complete_some(model, job, recipe: Recipe, rows, path: Path) -> Path | None:
    """Write the picture of evaluation.sample_images completed images to `path`; None where there are none."""
    number = recipe.evaluation.sample_images
    return write_completions(path, model, job, rows, number, recipe.training.seed) if number else None
