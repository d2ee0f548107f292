"""Random inputs of a forward pass, from a seed: ordinary tokens, images, and extra inputs that some classes need."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from ..twin import special_tokens


def _siglip2(config: PreTrainedConfig, rows: int) -> dict[str, Tensor]:
    """Images as four flattened patches each, as Siglip2's processor makes them."""
    vision = config.vision_config
    patches = torch.randn(rows, 4, vision.num_channels * vision.patch_size**2, generator=_generator(0))
    shapes = torch.full((rows, 2), 2)
    return {"pixel_values": patches, "spatial_shapes": shapes, "pixel_attention_mask": torch.ones(rows, 4).long()}


# (kind, model type) -> function of (config, rows, tokens): inputs that are added to the usual ones or replace them
# (None removes one), without which the class's forward pass fails; they do not depend on the seed of `batch`
INPUTS: dict[tuple[str, str], Callable[[PreTrainedConfig, int, int], dict[str, Any]]] = {
    ("causal", "blt"): lambda *_: {"use_cache": False},  # its forward pass cannot make its cache
    ("causal", "git"): lambda config, rows, _: {"pixel_values": pixels(config, rows)},
    ("seq2seq", "voxtral_realtime"): lambda config, rows, tokens: {
        "input_features": torch.randn(
            rows, config.audio_config.num_mel_bins, tokens * config.audio_length_per_tok, generator=_generator(0)
        )
    },
    ("image", "imagegpt"): lambda config, rows, tokens: {"input_ids": text(config, rows, tokens), "pixel_values": None},
    ("image", "siglip2"): lambda config, rows, _: _siglip2(config, rows),
}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vocabulary(config: PreTrainedConfig) -> int:
    """The vocabulary size of a model's input embedding."""
    text = config.get_text_config()
    return getattr(text, "vocab_size", None) or text.src_vocab_size


def text(config: PreTrainedConfig, rows: int = 2, tokens: int = 12, seed: int = 0) -> Tensor:
    """Ids (rows, tokens) of ordinary tokens: no special token of the config, such as padding, eos or image."""
    special = special_tokens(config.to_dict())
    ordinary = torch.tensor([token for token in range(vocabulary(config)) if token not in special])
    return ordinary[torch.randint(len(ordinary), (rows, tokens), generator=_generator(seed))]


def pixels(config: PreTrainedConfig, rows: int = 2, seed: int = 0) -> Tensor:
    """Normal noise (rows, channels, height, width) of the config's image size, else of 64 x 64."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    return torch.randn(rows, channels, height, width, generator=_generator(seed))


def batch(config: PreTrainedConfig, kind: str, rows: int = 2, tokens: int = 12, seed: int = 0) -> dict[str, Any]:
    """All inputs of one forward pass, without labels; images and audio features are fp32."""
    is_pair, extra = kind == "seq2seq" and config.is_encoder_decoder, INPUTS.get((kind, config.model_type))
    inputs = {"input_ids": text(config, rows, tokens, seed + 1)} if is_pair else {}
    if kind == "image":
        inputs["pixel_values"] = pixels(config, rows, seed)
    else:
        inputs["decoder_input_ids" if inputs else "input_ids"] = text(config, rows, tokens, seed)
    inputs |= extra(config, rows, tokens) if extra else {}
    return {name: value for name, value in inputs.items() if value is not None}
