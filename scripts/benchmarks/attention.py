"""Our backend of attention in native models, and kinds of attention that keep states, by the length of a row."""

import copy

import torch
from models import forward_backward
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

import anyformer

WINDOW = 128
STATES = ("full_attention", "linear_attention", "gated_delta_attention", "kimi_delta_attention", "mamba2_attention")
ROWS = ("plain", "packed", "window", "packed window")


def documents(length: int) -> torch.Tensor:
    """(1, T): positions that restart at each document of 50 to 400 tokens."""
    generator, row = torch.Generator().manual_seed(0), []
    while len(row) < length:
        row += range(int(torch.randint(50, 400, (1,), generator=generator)))
    return torch.tensor([row[:length]])


def native(device: str, dtype: str, rows: str, length: int, hidden: int, heads: int) -> dict:
    """Passes of native LLaMA or Mistral under sdpa and under our backend, and of our decoder with equal weights.

    rows: "plain", or "packed" with documents, or of a model with a "window" of 128 tokens, or both.
    """
    sizes = {
        "vocab_size": 512,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": length,
    }
    config = MistralConfig(**sizes, sliding_window=WINDOW) if "window" in rows else LlamaConfig(**sizes)
    torch.manual_seed(0)
    # A model's backend is written into its config, so each model needs a copy.
    models = {
        f"native {name}": AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=name)
        for name in ("sdpa", "anyformer")
    }
    models["native anyformer"].load_state_dict(models["native sdpa"].state_dict())
    models["ours"] = anyformer.from_native(models["native sdpa"])
    ids = torch.randint(512, (2, length), generator=torch.Generator().manual_seed(1)).to(device)
    batch = {"input_ids": ids, "labels": ids, "use_cache": False}
    if "packed" in rows:
        batch["position_ids"] = documents(length).expand(2, -1).to(device)
    return {name: forward_backward(model.to(device), batch, dtype) for name, model in models.items()}


def states(device: str, dtype: str, length: int, hidden: int, heads: int) -> dict:
    """Passes of a decoder layer with full attention, and with each kind that keeps a state of as many heads."""
    kinds = {kind: {"attention_pattern": [kind]} for kind in STATES}
    return decoders(device, dtype, length, kinds, hidden_size=hidden, num_hidden_layers=1, num_attention_heads=heads)


def strides(device: str, dtype: str, length: int, stride: int, layers: int, hidden: int, heads: int) -> dict:
    """Passes of a decoder with full and with strided attention."""
    kinds = {"full": {}, "strided": {"attention_pattern": ["strided_attention"], "attention_stride": stride}}
    return decoders(
        device, dtype, length, kinds, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads
    )


def decoders(device: str, dtype: str, length: int, kinds: dict[str, dict], **sizes) -> dict:
    """{variant: pass of a decoder of ours with its fields}."""
    ids = torch.randint(512, (1, length), generator=torch.Generator().manual_seed(1)).to(device)
    batch, variants = {"input_ids": ids, "labels": ids, "use_cache": False}, {}
    for name, fields in kinds.items():
        config = anyformer.AnyformerDecoderConfig(vocab_size=512, max_position_embeddings=length, **sizes, **fields)
        model = anyformer.AnyformerDecoderForCausalLM(config).to(device)
        variants[name] = forward_backward(model, batch, dtype)
    return variants
