"""Registers all families in transformers' Auto classes. Not saved with models: there `auto_map` does this."""

import transformers
from transformers.utils import is_vision_available

from . import attention_delta_fla, kernels
from .base import enter_peft_defaults
from .families import FAMILIES


def register_auto_classes() -> None:
    """Register every family in AutoConfig, AutoModel and the Auto heads, and our attention backend for all models.

    Safe to call more than once.
    """
    kernels.register()
    attention_delta_fla.register()
    for model_type, family in FAMILIES.items():
        config_class = family.load(family.config)
        transformers.AutoConfig.register(model_type, config_class, exist_ok=True)
        enter_peft_defaults(model_type)
        for auto_class, name in family.heads.items():
            getattr(transformers, auto_class).register(config_class, family.load(name), exist_ok=True)
        if family.of_images:
            register_image_processor(config_class)


def register_image_processor(config_class: type) -> None:
    """Register the processor of a family of images in AutoImageProcessor."""
    if not is_vision_available():  # without Pillow, models still take tensors
        return
    # Imported from its module: the name in `transformers` may be that of a dummy that asks for torchvision.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor  # transformers < 5.23

    from .image_processing import AnyformerImageProcessor

    classes = {"pil": AnyformerImageProcessor}
    AutoImageProcessor.register(config_class, image_processor_classes=classes, exist_ok=True)
