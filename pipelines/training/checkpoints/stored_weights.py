"""The weights of a checkpoint, under the names that they have in the model.

transformers saves some native classes with other names (Mixtral's experts one by one), which Trainer does not find.
"""

from pathlib import Path

import torch
from anyformer.modeling.families import FAMILIES
from safetensors import safe_open
from safetensors.torch import load_file

from ...transformers_logging import silent

FILES = "*model*.safetensors"  # one file, the shards of a large model, or an adapter


def stored_weights(model, folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a model from a folder, on the CPU; tied weights under both names."""
    if has_other_names(model, folder):
        with silent():
            return type(model).from_pretrained(folder, dtype=model.dtype).state_dict()
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob(FILES)):
        weights |= load_file(file, device="cpu")
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return weights | {
        name: weights[source] for name, source in tied.items() if name not in weights and source in weights
    }


def has_other_names(model, folder: Path) -> bool:
    """Whether a folder holds weights of a native class of transformers under names that the model does not have."""
    if model.config.model_type in FAMILIES:
        return False
    names: set[str] = set()
    for file in Path(folder).glob(FILES):
        with safe_open(file, framework="np") as tensors:
            names |= set(tensors.keys())
    return bool(names - model.state_dict().keys())
