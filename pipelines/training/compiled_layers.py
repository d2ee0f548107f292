"""Layers compiled by torch.compile (`training.torch_compile`), each by itself and in place.

Layers of one kind share what was compiled, so that a deep model takes as long to compile as one layer, and names of
weights stay as they are.
"""

from transformers import TrainerCallback
from transformers.modeling_layers import GradientCheckpointingLayer

from ..recipes.schema import TrainingSection
from .lora import plain

COMPILING = {"torch_compile_backend": "backend", "torch_compile_mode": "mode"}  # settings of Trainer, and torch's names


class CompiledLayers(TrainerCallback):
    """Compiles the layers when training begins: of a transformer, ours or native, with an adapter or without.

    A class without such layers is compiled whole.
    """

    def __init__(self, section: TrainingSection):
        given = {ours: section.extra.get(name) for name, ours in COMPILING.items()}
        self.arguments = {name: value for name, value in given.items() if value is not None}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model = plain(model)
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        for layer in layers or [model]:
            layer.compile(**self.arguments)
