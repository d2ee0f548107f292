"""Layers compiled by torch.compile (`training.torch_compile`), each by itself and in place.

Layers of one kind share what was compiled, so that a deep model takes as long to compile as one layer, and names of
weights stay as they are.
"""

from torch import nn
from transformers import TrainerCallback
from transformers.modeling_layers import GradientCheckpointingLayer

from ..recipes.schema import TrainingSection
from .lora import plain

COMPILING = {"torch_compile_backend": "backend", "torch_compile_mode": "mode"}  # settings of Trainer, and torch's names


def compile_arguments(section: TrainingSection) -> dict:
    """The arguments of torch.compile that a recipe chooses."""
    return {ours: section.extra[name] for name, ours in COMPILING.items() if section.extra.get(name) is not None}


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer, ours or native, with an adapter or without; none of a class without such layers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


class CompiledLayers(TrainerCallback):
    """Compiles the layers when training begins. arguments: of torch.compile."""

    def __init__(self, arguments: dict):
        self.arguments = arguments

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        for layer in layers_of(plain(model)) or [plain(model)]:
            layer.compile(**self.arguments)
