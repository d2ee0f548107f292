"""The frozen base of an adapter on the meta device: the dtype of its weights, and layers whose weights are packed.

Nothing is packed or computed, so bitsandbytes is not needed; shapes, numbers of weights and bytes are those of a run.
"""

import torch
from torch import nn
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from ..adapters import NF4
from ..recipes.schema import LoraSettings

# Of 4 bits by bitsandbytes: weights with one scale of a byte; scales with one of fp32; bytes of two tables and a mean.
BLOCK, SCALES, TABLES = 64, 256, 4 * (16 + 256 + 1)


class PackedProduct(torch.autograd.Function):
    """A product with a weight that is unpacked in the forward and again in the backward pass, and never kept."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.weight = weight
        return nn.functional.linear(x, torch.empty_like(weight, dtype=x.dtype), bias)

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ torch.empty_like(ctx.weight, dtype=gradient.dtype), None, None


class PackedLinear(nn.Linear):
    """A linear layer that counts as one of bitsandbytes. scaled: whether 4 bits have quantised scales; None: 8 bits."""

    scaled: bool | None = None
    computed = torch.float32

    def forward(self, input):
        bias = None if self.bias is None else self.bias.to(self.computed)
        return PackedProduct.apply(input.to(self.computed), self.weight, bias).to(input.dtype)

    @property
    def bytes_of_weight(self) -> int:
        if self.scaled is None:  # a scale for each row
            return self.weight.numel() + 4 * self.out_features
        blocks = -(-self.weight.numel() // BLOCK)
        scales = blocks + 4 * -(-blocks // SCALES) + TABLES if self.scaled else 4 * (blocks + 16)
        return -(-self.weight.numel() // 2) + scales


def packing_of(lora: LoraSettings | None, config) -> dict | None:
    """How the weights of a base are quantised by bitsandbytes, as in a config.json; None: they are not."""
    if lora is not None and lora.base == NF4:
        return {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    stored = getattr(config, "quantization_config", None) or {}
    stored = stored if isinstance(stored, dict) else stored.to_dict()
    return stored if stored.get("load_in_4bit") or stored.get("load_in_8bit") else None


def pack(model, packing: dict, computed: torch.dtype) -> None:
    """Make the linear layers of a model that bitsandbytes would quantise PackedLinear. computed: dtype of products."""
    kept = [*get_keys_to_not_convert(model), *(packing.get("llm_int8_skip_modules") or [])]
    for name, module in model.named_modules():
        if type(module) is nn.Linear and should_convert_module(name, kept):
            module.__class__, module.computed = PackedLinear, computed
            module.scaled = bool(packing.get("bnb_4bit_use_double_quant")) if packing.get("load_in_4bit") else None


def frozen_bytes(model) -> int:
    """The bytes of a model's frozen weights as they are kept."""
    packed = {id(part.weight): part.bytes_of_weight for part in model.modules() if isinstance(part, PackedLinear)}
    frozen = (weight for weight in model.parameters() if not weight.requires_grad)
    return sum(packed.get(id(weight), weight.numel() * weight.element_size()) for weight in frozen)
