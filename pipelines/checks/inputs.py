"""What a forward pass of a model reads, drawn from a seed: ordinary tokens, images, and what single classes demand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from .twin import special_tokens


def _siglip2(config: PreTrainedConfig, rows: int) -> dict[str, Tensor]:
    """Images as four patches of numbers, as its processor makes them."""
    vision = config.vision_config
    patches = torch.randn(rows, 4, vision.num_channels * vision.patch_size**2, generator=_generator(0))
    shapes = torch.full((rows, 2), 2)
    return {"pixel_values": patches, "spatial_shapes": shapes, "pixel_attention_mask": torch.ones(rows, 4).long()}


# (kind, model type) -> inputs of (config, rows, tokens) beside or instead of (None: without) the usual ones, without
# which the class's forward pass fails; equal in each row
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
    """How many ids a model's input embedding knows."""
    text = config.get_text_config()
    return getattr(text, "vocab_size", None) or text.src_vocab_size


def text(config: PreTrainedConfig, rows: int = 2, tokens: int = 12, seed: int = 0) -> Tensor:
    """Ids (rows, tokens) of ordinary tokens: none that the config names, such as padding, end or image."""
    special = special_tokens(config.to_dict())
    ordinary = torch.tensor([token for token in range(vocabulary(config)) if token not in special])
    return ordinary[torch.randint(len(ordinary), (rows, tokens), generator=_generator(seed))]


def pixels(config: PreTrainedConfig, rows: int = 2, seed: int = 0) -> Tensor:
    """Images (rows, channels, height, width) of the size that the config names, else of 64 x 64; normal numbers."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    return torch.randn(rows, channels, height, width, generator=_generator(seed))


def batch(
    config: PreTrainedConfig,
    kind: str,
    rows: int = 2,
    tokens: int = 12,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Any]:
    """All that one forward pass reads, without labels; images and sounds in a dtype."""
    is_pair, row = kind == "seq2seq" and config.is_encoder_decoder, INPUTS.get((kind, config.model_type))
    given = {"input_ids": text(config, rows, tokens, seed + 1)} if is_pair else {}
    if kind == "image":
        given["pixel_values"] = pixels(config, rows, seed)
    else:
        given["decoder_input_ids" if given else "input_ids"] = text(config, rows, tokens, seed)
    given |= row(config, rows, tokens) if row else {}
    floats = {name: v.to(dtype) for name, v in given.items() if torch.is_tensor(v) and v.is_floating_point()}
    return {name: value for name, value in (given | floats).items() if value is not None}
