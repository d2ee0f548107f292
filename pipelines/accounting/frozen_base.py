"""Bytes of an adapter's frozen base, which bitsandbytes may pack; on the meta device, where nothing is packed."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from ..adapters import NF4
from ..recipes.schema import LoraSettings

# Of 4 bits: weights with one scale, of a byte if scales are quantised; such scales with one of fp32; bytes of tables.
BLOCK, SCALES, TABLES = 64, 256, 4 * (16 + 256 + 1)


def packing_of(lora: LoraSettings, config) -> dict | None:
    """How bitsandbytes quantises a base, as in a config.json; None: it does not."""
    if lora.base == NF4:
        return {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    stored = config.to_dict().get("quantization_config") or {}
    return stored if stored.get("load_in_4bit") or stored.get("load_in_8bit") else None


def mark_packed(model, packing: dict, computed: torch.dtype) -> None:
    """Write the bytes that the weights of linear layers take packed, as `packed_bytes`, for frozen_bytes.

    The weights get the dtype `computed`, as products with unpacked ones keep no copies of them.
    """
    kept = [*get_keys_to_not_convert(model), *(packing.get("llm_int8_skip_modules") or [])]
    for name, module in model.named_modules():
        if type(module) in (nn.Linear, Conv1D) and should_convert_module(name, kept):
            module.to(computed).weight.packed_bytes = packed_bytes(*module.weight.shape, packing)


def packed_bytes(rows: int, width: int, packing: dict) -> int:
    """The bytes of a packed weight with its scales and tables."""
    if not packing.get("load_in_4bit"):
        return rows * width + 4 * rows
    blocks = -(-rows * width // BLOCK)
    scales = 4 * (blocks + 16)
    if packing.get("bnb_4bit_use_double_quant"):
        scales = blocks + 4 * -(-blocks // SCALES) + TABLES
    return -(-rows * width // 2) + scales


def frozen_bytes(model) -> int:
    """The bytes of a model's frozen weights as they are kept."""
    frozen = (weight for weight in model.parameters() if not weight.requires_grad)
    return sum(getattr(weight, "packed_bytes", weight.numel() * weight.element_size()) for weight in frozen)
