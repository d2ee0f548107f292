"""anyformer: pretrain, fine-tune, evaluate and publish every family of transformer as native Hugging Face models.

`import anyformer` registers the model families with transformers' Auto classes. The classes themselves, and torch and
transformers, are loaded on first use (`anyformer.AnyformerDecoderForCausalLM`).
"""

import importlib
import importlib.metadata

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.registration import register

try:
    __version__ = importlib.metadata.version("anyformer")  # from git's tag, at the time of installation
except importlib.metadata.PackageNotFoundError:  # run from the sources, not installed
    __version__ = "0+unknown"

# Public name -> module that defines it. Everything else is private to its module.
_EXPORTS = {name: "anyformer.modeling" for family in FAMILIES.values() for name in family.exports} | {
    "AnyformerImageProcessor": "anyformer.modeling",
    "AnyformerTrainer": "anyformer.pipelines.training.trainer",
    "Objective": "anyformer.pipelines.objectives.base",
    "Run": "anyformer.pipelines.api",
    "load_recipe": "anyformer.pipelines.recipes.compose",
    "check": "anyformer.pipelines.api",
    "plan": "anyformer.pipelines.api",
    "prepare_data": "anyformer.pipelines.api",
    "train": "anyformer.pipelines.api",
    "evaluate": "anyformer.pipelines.api",
    "predict": "anyformer.pipelines.api",
    "attention_maps": "anyformer.pipelines.inspection.attention_maps",
    "EvaluationSuite": "anyformer.pipelines.evaluation.suite",
    "register_objective": "anyformer.pipelines.plugins",
    "register_metric": "anyformer.pipelines.metrics",
    "load_metric": "anyformer.pipelines.metrics",
    "register_source": "anyformer.pipelines.plugins",
    "register_optimizer": "anyformer.pipelines.plugins",
    "register_schedule": "anyformer.pipelines.plugins",
    "from_native": "anyformer.pipelines.interop.conversion",
    "to_native": "anyformer.pipelines.interop.conversion",
    "convert": "anyformer.pipelines.interop.convert_checkpoint",
    "publish": "anyformer.pipelines.publishing.publish",
}
__all__ = ["__version__", "register", *_EXPORTS]


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__():
    return sorted(__all__)


register()
