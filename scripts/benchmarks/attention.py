"""Kinds of attention, and our backend in native models, by the length of a row."""

import copy

import torch
from models import autocast, forward_backward
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig, MistralConfig

import anyformer
from anyformer import (
    AnyformerDecoderConfig,
    AnyformerDecoderModel,
    AnyformerEncoderConfig,
    AnyformerEncoderModel,
)

WINDOW, STRIDE = 128, 64
# "none" passes values through in place of attention: what no kind can be faster than.
KINDS = {
    "full": {"attention_pattern": ["full_attention"]},
    "full, two-sided": {"attention_pattern": ["full_attention"]},
    "sliding": {"attention_pattern": ["sliding_attention"], "sliding_window": WINDOW},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": STRIDE},
    "local+global": {"attention_pattern": ["local_global_attention"], "sliding_window": WINDOW // 2},
    "linear": {"attention_pattern": ["linear_attention"]},
    "compressive": {"attention_pattern": ["compressive_attention"], "segment_length": WINDOW},
    "recurrent": {"segment_length": WINDOW, "memory_length": WINDOW},
    "none": {"attention_pattern": ["full_attention"], "attn_implementation": "values_passed_through"},
}
ROWS = ("plain", "packed", "window", "packed window")
ENCODERS = {"full, two-sided", "local+global"}
AttentionInterface.register("values_passed_through", lambda module, q, k, v, *_, **__: (v.transpose(1, 2), None))


def trunk(kind: str, length: int, hidden: int, heads: int):
    """A model without a head."""
    config_class, model_class = AnyformerDecoderConfig, AnyformerDecoderModel
    fields = {"use_cache": False}
    if kind in ENCODERS:
        config_class, model_class = AnyformerEncoderConfig, AnyformerEncoderModel
        fields = {"add_pooling_layer": False}
    torch.manual_seed(0)
    config = config_class(
        vocab_size=64,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=2,
        max_position_embeddings=length,
        **fields,
        **KINDS[kind],
    )
    return model_class(config)


def pass_of(model, passes: str, dtype: str, batch: dict):
    """passes: "forward" or "training"."""
    if passes == "training":
        return forward_backward(model, batch, dtype, lambda outputs: outputs.last_hidden_state.square().mean())

    @torch.no_grad()
    def forward() -> None:
        with autocast(dtype):
            model.eval()(**batch)

    return forward


def kinds(setting, dtype: str, passes: str, length: int, hidden: int, heads: int) -> dict:
    """Passes of 2 layers without a head over one row, by kinds of attention.

    The kinds compute different functions, so only their costs are compared.
    """
    found = {}
    for kind in KINDS:
        batch = {"input_ids": torch.randint(64, (1, length), generator=torch.Generator().manual_seed(0))}
        if kind == "local+global":  # one token that sees all and is seen by all, as [CLS] is
            batch["global_attention_mask"] = torch.nn.functional.pad(torch.ones(1, 1), (0, length - 1)).long()
        found[kind] = pass_of(trunk(kind, length, hidden, heads), passes, dtype, batch)
    return found


def documents(length: int) -> torch.Tensor:
    """(1, T): positions that restart at each document of 50 to 400 tokens."""
    drawn, row = torch.Generator().manual_seed(0), []
    while len(row) < length:
        row += range(int(torch.randint(50, 400, (1,), generator=drawn)))
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
    # The backend's name is kept in the config, which models share.
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
