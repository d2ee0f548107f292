"""Our backend of attention in native models, and kinds of attention that keep states, by the length of a row."""

import copy

import torch
from anyformer.modeling.attention_masks import make_masks
from models import autocast, forward_backward
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


def native(setting, dtype: str, rows: str, length: int, hidden: int, heads: int) -> dict:
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
    ids = torch.randint(512, (2, length), generator=torch.Generator().manual_seed(1)).to(setting.device)
    batch = {"input_ids": ids, "labels": ids, "use_cache": False}
    if "packed" in rows:
        batch["position_ids"] = documents(length).expand(2, -1).to(setting.device)
    return {name: forward_backward(model.to(setting.device), batch, dtype) for name, model in models.items()}


def tokens(setting, length: int) -> dict:
    """(1, T) random tokens that are their own labels."""
    ids = torch.randint(512, (1, length), generator=torch.Generator().manual_seed(1)).to(setting.device)
    return {"input_ids": ids, "labels": ids, "use_cache": False}


def decoder(setting, kind: str, length: int, hidden: int, heads: int, layers: int = 1, **fields):
    """A decoder of ours whose layers all have one kind of attention."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"vocab_size": 512, "max_position_embeddings": length, "attention_pattern": [kind]}
    return anyformer.AnyformerDecoderForCausalLM(anyformer.AnyformerDecoderConfig(**sizes, **fields)).to(setting.device)


def states(setting, dtype: str, length: int, hidden: int, heads: int) -> dict:
    """Passes of a decoder layer with full attention, and with each kind that keeps a state of as many heads."""
    batch = tokens(setting, length)
    return {kind: forward_backward(decoder(setting, kind, length, hidden, heads), batch, dtype) for kind in STATES}


def strides(setting, dtype: str, part: str, length: int, stride: int, **sizes) -> dict:
    """Passes of a decoder with full and with strided attention, or (part="attention") of one attention layer each."""
    models = {
        "full": decoder(setting, "full_attention", length, **sizes),
        "strided": decoder(setting, "strided_attention", length, attention_stride=stride, **sizes),
    }
    if part == "attention":
        return {name: attention_alone(model, dtype) for name, model in models.items()}
    return {name: forward_backward(model, tokens(setting, length), dtype) for name, model in models.items()}


def attention_alone(model, dtype: str):
    """Return a function: mask, forward and backward of the first layer's attention, projections included."""
    config, attention = model.config, model.model.layers[0].self_attn.train()
    x_BTD = torch.randn(1, config.max_position_embeddings, config.hidden_size, device=model.device)

    def step() -> torch.Tensor:
        attention.zero_grad(set_to_none=True)
        with autocast(dtype, model.device.type):
            (mask,) = make_masks(config, x_BTD, None).values()
            mean = attention(x_BTD, mask)[0].float().square().mean()
        mean.backward()
        return mean.detach()

    return step
