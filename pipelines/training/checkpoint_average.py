"""Checkpoint averaging: the mean of the weights of several checkpoints."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from .lora import is_adapted, load_weights


def average_weights(checkpoints: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of the checkpoints; integer buffers are those of the first one."""
    total: dict[str, torch.Tensor] = {}
    for checkpoint in checkpoints:
        for file in checkpoint.glob("*model*.safetensors"):  # one file, the shards of a large model, or an adapter
            for name, tensor in load_file(file).items():
                total[name] = total[name] + tensor if name in total else tensor
    return {name: x / len(checkpoints) if x.is_floating_point() else x for name, x in total.items()}


def load_average(model: torch.nn.Module, found: list[Path]):
    """Give a model the mean of the weights of some checkpoints.

    Returns what load_state_dict found; None of an adapter, which takes all of its weights.
    """
    if is_adapted(model):
        load_weights(model, average_weights(found))
        return None
    return model.load_state_dict(average_weights(found), strict=False)
