"""All families' entries in transformers' Auto classes. Not copied to the Hub, where `auto_map` does this."""

import transformers
from transformers.utils import is_vision_available

from . import attention_delta_fla, kernels
from .base import enter_peft_defaults
from .families import FAMILIES


def register_auto_classes() -> None:
    """Make AutoConfig, AutoModel and the Auto heads know every family, and all models our attention backend.

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
    """Make AutoImageProcessor know the processor of a family of images."""
    if not is_vision_available():  # without Pillow, models still take tensors
        return
    # From its own module: the name in `transformers` may be of an object that asks for torchvision.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor  # transformers < 5.23

    from .image_processing import AnyformerImageProcessor

    classes = {"pil": AnyformerImageProcessor}
    AutoImageProcessor.register(config_class, image_processor_classes=classes, exist_ok=True)
