"""The model that a recipe names, as it was saved, to be measured or asked; nothing that trains is imported for it."""

import torch
import transformers

from ..adapters import load_config, load_model
from ..backends import backend_arguments, check_got, explain, is_half
from ..errors import CANNOT_LOAD, UserError, loading, loading_reason
from ..precision import computed_dtype
from ..recipes.checkpoint_overrides import with_fields
from ..recipes.schema import Recipe
from ..transformers_logging import errors_only


def open_config(recipe: Recipe):
    """The checkpoint's config with the recipe's fields; raise UserError where it cannot be loaded."""
    transformers.utils.logging.disable_progress_bar()
    source = recipe.model.name_or_path
    with loading(f"MODEL={source}"), errors_only():
        config = load_config(source, trust_remote_code=recipe.trust_remote_code)
    return with_fields(config, recipe.model.fields, source)


def load(auto_class, recipe: Recipe, unused: tuple[str, ...] = ()):
    """The checkpoint's model, in evaluation mode, with all weights that the task needs; raise UserError otherwise.

    unused: prefixes of the names of weights that the task does not use.
    """
    config, section = open_config(recipe), recipe.model
    source, half = section.name_or_path, is_half(config.dtype) or is_half(computed_dtype(recipe.training))
    chosen = backend_arguments(section.attn_implementation, section.experts_implementation, config, half)
    options = {"dtype": "auto", "output_loading_info": True, "trust_remote_code": recipe.trust_remote_code} | chosen
    options |= {"config": config} if section.fields else {}
    try:
        with errors_only():  # transformers would print a table of missing weights, which our error sums up
            model, info = load_model(auto_class, source, **options)
    except CANNOT_LOAD as error:
        explain(error, chosen)
        raise UserError(f"MODEL={source} cannot be loaded by {auto_class.__name__}: {loading_reason(error)}") from error
    check_got(model, chosen)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(unused))
    if missing:  # transformers would go on with random ones
        raise UserError(
            f"MODEL={source} was not trained for this: it has no {missing[0]} for {type(model).__name__}; train it "
            f"first, with anyformer train TASK model.name_or_path={source}"
        )
    return model.eval()


def load_placed(head: str, recipe: Recipe):
    """The checkpoint's model with the head of an Auto class, on the device that measures; raise UserError as `load`."""
    on_cpu = recipe.training.extra.get("use_cpu") or not torch.accelerator.is_available()
    device = "cpu" if on_cpu else torch.accelerator.current_accelerator()
    return load(getattr(transformers, head), recipe).to(device)
