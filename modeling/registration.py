"""All families' entries in transformers' Auto classes. Not copied to the Hub, where `auto_map` does this."""

import transformers
from transformers.utils import is_vision_available

from . import decoder, encoder, kernels, moe, seq2seq, vit
from .base import enter_peft_defaults

MODULES = {
    decoder.AnyformerDecoderConfig: decoder,
    moe.AnyformerMoeConfig: moe,
    encoder.AnyformerEncoderConfig: encoder,
    seq2seq.AnyformerSeq2SeqConfig: seq2seq,
    vit.AnyformerViTConfig: vit,
}


def register_auto_classes() -> None:
    """Make AutoConfig, AutoModel and the Auto heads know every family, and all models our attention backend.

    Safe to call more than once.
    """
    kernels.register()
    for config_class, module in MODULES.items():
        transformers.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        enter_peft_defaults(config_class.model_type)
        family = next(
            cls
            for cls in vars(module).values()
            if config_class is getattr(cls, "config_class", None) and cls.auto_classes
        )
        for auto_class, name in family.auto_classes.items():
            getattr(transformers, auto_class).register(config_class, getattr(module, name), exist_ok=True)
    if is_vision_available():  # without Pillow, models still take tensors
        # From its own module: the name in `transformers` may be of an object that asks for torchvision.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor  # transformers < 5.23

        from .image_processing import AnyformerImageProcessor

        AutoImageProcessor.register(
            vit.AnyformerViTConfig,
            image_processor_classes={"pil": AnyformerImageProcessor},
            exist_ok=True,
        )
