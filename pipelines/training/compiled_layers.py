"""Layers compiled by torch.compile (`training.torch_compile`), each by itself and in place.

Layers of one kind share the compiled code, so a deep model compiles as fast as one layer. In place: the names of
weights do not change.
"""

from transformers import TrainerCallback
from transformers.modeling_layers import GradientCheckpointingLayer

from ..accounting.lora import plain
from ..recipes.schema import TrainingSection

COMPILING = {"torch_compile_backend": "backend", "torch_compile_mode": "mode"}  # {Trainer's setting: torch's name}


class CompiledLayers(TrainerCallback):
    """Compiles the layers of a model when training begins, in our classes and in transformers'.

    A model without GradientCheckpointingLayers is compiled whole.
    """

    def __init__(self, section: TrainingSection):
        settings = {ours: section.extra.get(name) for name, ours in COMPILING.items()}
        self.arguments = {name: value for name, value in settings.items() if value is not None}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model = plain(model)
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        for layer in layers or [model]:
            layer.compile(**self.arguments)
